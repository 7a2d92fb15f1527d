"""The options of `orch export k8s`, its notes for people, and its refusals of what it cannot write."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.core.plan import Plan
from orchestrator.spec.diagnostics import Loc
from orchestrator.spec.kubernetes.objects import Asked, in_no_pod

LABEL_MAX = 63
_POD_SUFFIX = len("-xxxxx")
CONFIG_MAP_BYTES_MAX = 1 << 20
"""The API server refuses a ConfigMap that holds more."""


@dataclass(frozen=True, slots=True)
class Wishes(Asked):
    """The options of the command line."""

    code_dir: str | None = None
    """Where the image has the code; None: it is put into a ConfigMap."""
    python: str = "python3"
    restarts: int = 100
    save_wait_s: float = 120.0


def pod_names(plan: Plan) -> list[str]:
    """Return the host name of each task's pod, in the order of the tasks. DNS knows it for as long as the set lives."""
    return [f"{plan.name}-{task.type}-0-{task.index}" for task in sorted(task.id for task in plan.tasks)]


def refusals(plan: Plan) -> Iterator[tuple[Loc, str]]:
    """Yield what these manifests cannot express, each with its place in the spec."""
    longest = max(map(len, pod_names(plan))) + _POD_SUFFIX
    yield from in_no_pod(plan)
    if longest > LABEL_MAX:
        yield ("name",), f"pods get names of {longest} characters from it; Kubernetes allows {LABEL_MAX}"
    for type_ in plan.replicas_min:
        yield ("run", "tasks", type_, "replicas_min"), "a JobSet has all of its pods, or does not run"
    if len(plan.tasks) > 1 and plan.checkpoint is not None and not plan.checkpoint.shared:
        yield (
            ("run", "checkpoint", "shared"),
            "pods share one volume; remove it, and give the claim ReadWriteMany",
        )
    of_type: dict[str, set[int]] = {}
    for task in plan.tasks:
        of_type.setdefault(task.id.type, set()).add(len(task.gpus))
    for type_, counts in of_type.items():
        if len(counts) > 1:
            words = " and ".join(map(str, sorted(counts)))
            yield (
                ("run", "tasks", type_),
                f"its pods are all alike, and these have {words} GPUs; set `gpus` for each",
            )
            return


def notes(plan: Plan, wishes: Wishes) -> list[str]:
    """Return notes for people on the manifests, and on what they leave out."""
    sentences = ["Written by `orch export k8s`; never sent to a cluster by orch. Read it before you use it."]
    sentences.append(
        "Use `kubectl apply --server-side -f`: plain `apply` copies each object into an annotation, which holds 256 "
        f"KiB. Before a changed file, `kubectl delete jobset {plan.name} --cascade=foreground`: it waits for its pods."
    )
    sentences.append("It needs the JobSet controller (jobset.x-k8s.io/v1alpha2) in the cluster.")
    if plan.secrets:
        words = ", ".join(plan.secrets)
        sentences.append(
            f"Create the Secret {plan.name}-secrets with the keys {words} first; no value is in here."
        )
    if plan.checkpoint is None:
        sentences.append("The spec names no checkpoint directory: each restart begins at step 0.")
    elif wishes.claim is None:
        sentences.append(
            f"The claim {plan.name}-checkpoints is not in this file, so that nothing deletes it with the run: create "
            "it once, from what `--claim-only` prints."
        )
    if plan.checkpoint is not None and len(plan.tasks) > 1:
        sentences.append("The checkpoint claim must be one that several nodes can mount (ReadWriteMany).")
    if any(host.spare for host in plan.hosts):
        sentences.append("Spare hosts are left out: Kubernetes chooses among the nodes that it has.")
    if plan.outputs:
        sentences.append(
            "`outputs` are not fetched: let the script save them below the checkpoint directory."
        )
    if plan.chaos:
        sentences.append("`orch chaos` does not reach pods.")
    return sentences
