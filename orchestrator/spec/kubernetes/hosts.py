"""Pods as hosts: a StatefulSet whose pods have orch's keeper as first process, and the plan that uses them.

Nothing of the user's script is in here: code, arguments, environment and secrets travel over the channel, as over SSH.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.core.plan import HostPlan, Plan
from orchestrator.protocol import pod
from orchestrator.spec.diagnostics import Loc
from orchestrator.spec.kubernetes import objects
from orchestrator.spec.kubernetes.objects import MARGIN_S, Manifest

TRANSPORT = "k8s"

NAME_MAX = 40
"""The longest name of a run: its pods' names are host names, and a keeper's socket has them in its path."""

_TMP = "/orch/tmp"


@dataclass(frozen=True, slots=True)
class PodWishes(objects.Asked):
    """The request to Kubernetes."""

    context: str | None = None


def needs_claim(plan: Plan) -> bool:
    """Whether all pods must see one checkpoint directory."""
    return plan.checkpoint is not None and plan.checkpoint.shared


def refusals(plan: Plan) -> Iterator[tuple[Loc, str]]:
    """Yield why this plan cannot have pods as its hosts, each with its place in the spec."""
    yield from objects.in_no_pod(plan)
    if len(plan.name) > NAME_MAX:
        yield ("name",), f"pods are named after it; it has {len(plan.name)} characters, and {NAME_MAX} fit"


def in_pods(plan: Plan, allocation: str, there: Sequence[str] = (), volume: str = "", first: int = 0) -> Plan:
    """Return the plan with its hosts replaced by pods from this number on, which are alike and mount this volume.

    Those that hold tasks come first, and get the pods that are `there`; the rest are spares.
    """
    ordered = sorted(plan.hosts, key=lambda host: host.spare)
    names = [f"{plan.name}-{first + i}" for i in range(len(ordered))]
    names.sort(key=lambda name: bool(there) and name not in there)
    made = {host.name: _host(host, name, plan, allocation) for host, name in zip(ordered, names, strict=True)}
    tasks = tuple(
        replace(
            task,
            host=made[task.host].name,
            gpus=tuple(plan.host(task.host).gpus.index(gpu) for gpu in task.gpus),
        )
        for task in plan.tasks
    )
    checkpoint = plan.checkpoint and replace(plan.checkpoint, volume=volume)
    return replace(
        plan, hosts=tuple(made[host.name] for host in ordered), tasks=tasks, checkpoint=checkpoint
    ).fixed


def _host(host: HostPlan, name: str, plan: Plan, allocation: str) -> HostPlan:
    return HostPlan(
        name,
        transport=TRANSPORT,
        address=name,
        data_address=f"{name}.{plan.name}",  # of the headless Service: it stays when a pod is made anew
        python=host.python,
        gpus=tuple(range(len(host.gpus))),  # a container sees its own from 0
        slots=host.slots,
        spare=host.spare,
        allocation=allocation,
        spec=host.spec,
    )


def claim_manifest(plan: Plan, wishes: PodWishes, allocation: str) -> Manifest:
    """Return the claim, labelled with its allocation: only an allocation that never ran deletes its claim."""
    claim = objects.claim(plan, wishes, len(plan.hosts))
    claim["metadata"]["labels"][pod.ALLOCATION_LABEL] = allocation
    return claim


def pod_manifests(
    plan: Plan, wishes: PodWishes, bundle: bytes, allocation: str, first: int = 0
) -> list[Manifest]:
    """Return all objects of an allocation, in the order in which they are created. `first`: its first pod's number."""
    labels = {**objects.labels(plan), pod.ALLOCATION_LABEL: allocation}

    def head(api: str, kind: str, name: str) -> Manifest:
        return {"apiVersion": api, "kind": kind, "metadata": {"name": name, "labels": labels}}

    service = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": {pod.ALLOCATION_LABEL: allocation},
    }
    stateful_set = {
        "serviceName": plan.name,
        "replicas": len(plan.hosts),
        **({"ordinals": {"start": first}} if first else {}),
        "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": {pod.ALLOCATION_LABEL: allocation}},
        "template": objects.patched(
            {"metadata": {"labels": labels}, "spec": _pod(plan, wishes, allocation)}, wishes
        ),
    }
    binary = {"orch.pyz": base64.b64encode(bundle).decode("ascii")}
    return [
        {**head("v1", "ConfigMap", f"{plan.name}-orch"), "binaryData": binary, "immutable": True},
        {**head("v1", "Service", plan.name), "spec": service},
        {**head("apps/v1", "StatefulSet", plan.name), "spec": stateful_set},
    ]


def _pod(plan: Plan, wishes: PodWishes, allocation: str) -> Manifest:
    return {
        # The keeper ends when it was asked to and nothing of a run is left; until then tasks go on, and save.
        "terminationGracePeriodSeconds": int(plan.timing.kill_grace_s) + 60 + MARGIN_S,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "containers": [_container(plan, wishes, allocation)],
        "volumes": list(_volumes(plan, wishes)),
    }


def _container(plan: Plan, wishes: PodWishes, allocation: str) -> Manifest:
    python = plan.hosts[0].python.replace("$", "$$")  # Kubernetes expands $(NAME)
    env: list[dict[str, Any]] = [
        {"name": pod.POD_UID, "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
        {"name": "ORCH_HOST_DIR", "value": f"{pod.HOST_DIR}/dir"},
        {"name": "TMPDIR", "value": _TMP},
    ]
    return {
        "name": pod.CONTAINER,
        "image": wishes.image,
        "command": [python, "-I", "-S", pod.BUNDLE, "keeper", allocation],
        "env": env,
        "securityContext": {"allowPrivilegeEscalation": False},
        "volumeMounts": list(_mounts(plan)),
        **objects.resources(wishes, max(len(host.gpus) for host in plan.hosts)),
    }


def _mounts(plan: Plan) -> Iterator[Manifest]:
    yield {"name": "bundle", "mountPath": "/orch/bundle", "readOnly": True}
    yield {"name": "host", "mountPath": pod.HOST_DIR}
    yield {"name": "tmp", "mountPath": _TMP}
    yield {"name": "shm", "mountPath": "/dev/shm"}
    if plan.checkpoint is not None:
        yield {"name": "checkpoints", "mountPath": plan.checkpoint.dir}


def _volumes(plan: Plan, wishes: PodWishes) -> Iterator[Manifest]:
    yield {"name": "bundle", "configMap": {"name": f"{plan.name}-orch"}}
    yield {"name": "host", "emptyDir": {}}
    yield {"name": "tmp", "emptyDir": {}}
    yield {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": wishes.shm}}
    if needs_claim(plan):
        claim = {"claimName": objects.claim_name(plan, wishes)}
        yield {"name": "checkpoints", "persistentVolumeClaim": claim}
    elif plan.checkpoint is not None:
        yield {"name": "checkpoints", "emptyDir": {}}
