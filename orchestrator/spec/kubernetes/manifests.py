"""The exported manifests: ConfigMaps and a JobSet. The claim of the checkpoints is separate, since it outlives them.

A ConfigMap is named by its content: a changed run names another one, and what pods have mounted never changes.
Everything of the user's is a YAML value; the container's command is fixed, and no shell reads it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import yaml

from orchestrator.core.launching.environment import environment, has_scratch, wiring
from orchestrator.core.launching.wiring import Addresses
from orchestrator.core.phases import stall
from orchestrator.core.plan import HostPlan, Plan, TaskId, TaskPlan
from orchestrator.core.strategy import STRATEGIES
from orchestrator.protocol import pod
from orchestrator.spec.kubernetes import objects
from orchestrator.spec.kubernetes.objects import MARGIN_S, Manifest
from orchestrator.spec.kubernetes.wishes import Wishes, pod_names

# The document that the entry of each pod reads: what its task is, and how all of them are named

PORT = "@PORT@"
"""In the place of the port, which the entry fills in: each generation has another one."""

_SET_BY_THE_ENTRY = ("ORCH_RUN", "ORCH_HOST", "ORCH_GENERATION", "ORCH_RESTARTS")


def in_pods(plan: Plan) -> Plan:
    """Return the plan with each task on a host of its own, by its stable name: `mnist-worker-0-1.mnist`."""
    placed = sorted(plan.tasks, key=lambda task: task.id)
    hosts, tasks = [], []
    for task, name in zip(placed, pod_names(plan), strict=True):
        gpus = tuple(range(len(task.gpus)))  # a container sees its own from 0
        address = f"{name}.{plan.name}"
        hosts.append(HostPlan(name, address=address, data_address=address, gpus=gpus))
        tasks.append(TaskPlan(task.id, name, gpus))
    return replace(plan, hosts=tuple(hosts), tasks=tuple(tasks))


def settings(plan: Plan, wishes: Wishes) -> dict[str, Any]:
    """Return the document. It holds no secret's value."""
    moved = in_pods(plan)
    ids = sorted(task.id for task in moved.tasks)
    addresses = Addresses({task: f"{moved.host(moved.task(task).host).address}:{PORT}" for task in ids})
    restart, timing = plan.restart, plan.timing
    return {
        "schema": 1,
        "name": plan.name,
        "chief": str(plan.chief),
        "tasks": {str(task): _task(moved, task, addresses) for task in ids},
        "python": wishes.python,
        "script": plan.command[0],
        "args": list(plan.command[1:]),
        "runtime": plan.runtime,
        "code_dir": wishes.code_dir,
        "ports": list(plan.ports),
        "secrets": list(plan.secrets),
        "checkpoint": plan.checkpoint and {"dir": plan.checkpoint.dir, "keep": plan.checkpoint.keep},
        "timing": {
            "stall_after_s": timing.stall_after_s,
            "stall_floor_s": stall.FLOOR_S,
            "stall_factor": stall.PAUSE_FACTOR,
            "on_stall": restart.on_stall,
            "kill_grace_s": timing.kill_grace_s,
            "save_wait_s": wishes.save_wait_s,
            "without_progress_max": restart.without_progress_max,
        },
    }


def _task(plan: Plan, task: TaskId, addresses: Addresses) -> dict[str, Any]:
    env = environment(plan, "", 0, task, 0, None)
    scratch = has_scratch(plan, task)
    return {
        "env": {name: text for name, text in env.items() if name not in _SET_BY_THE_ENTRY},
        "wiring": wiring(plan, addresses, task),
        "saves": task == plan.chief or task.type == "evaluator",
        "scratch": scratch,
        "trains": task == plan.chief or scratch,
    }


_JOBSET_SET = "metadata.labels['jobset.sigs.k8s.io/jobset-uid']"
_JOBSET_ATTEMPT = "metadata.labels['jobset.sigs.k8s.io/restart-attempt']"


def manifests(plan: Plan, wishes: Wishes, bundle: bytes, code: bytes | None) -> list[Manifest]:
    """Return all objects, in the order in which they are created.

    Args:
        plan: a plan for which `refusals` yields nothing.
        wishes: the options.
        bundle: orch's own code, as hosts get it.
        code: the user's code as a zip archive; None if the image has it.
    """
    files = {"pod.json": json.dumps(settings(plan, wishes), indent=1)}
    maps = {"bundle": _config_map(plan, wishes, "orch", {"orch.pyz": bundle}, files)}
    if code is not None:
        maps["code"] = _config_map(plan, wishes, "code", {"code.zip": code}, {})
    return [*maps.values(), _jobset(plan, wishes, {name: _name(document) for name, document in maps.items()})]


def claims(plan: Plan, wishes: Wishes) -> list[Manifest]:
    """Return the claim of the checkpoints, where one is to be made. It is created once, and deleted by hand."""
    if plan.checkpoint is None or wishes.claim is not None:
        return []
    claim = objects.claim(plan, wishes, len(plan.tasks))
    claim["metadata"] = _metadata(plan, wishes, _name(claim))
    return [claim]


def _name(document: Manifest) -> str:
    return str(document["metadata"]["name"])


def _metadata(plan: Plan, wishes: Wishes, name: str) -> Manifest:
    at = {} if wishes.namespace is None else {"namespace": wishes.namespace}
    return {"name": name, "labels": objects.labels(plan), **at}


def _config_map(
    plan: Plan, wishes: Wishes, part: str, binary: dict[str, bytes], data: dict[str, str]
) -> Manifest:
    content: Manifest = {"data": data} if data else {}
    content["binaryData"] = {
        key: base64.b64encode(content_bytes).decode("ascii") for key, content_bytes in binary.items()
    }
    metadata = _metadata(plan, wishes, f"{plan.name}-{part}-{objects.digest(content)[:10]}")
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, **content, "immutable": True}


def _jobset(plan: Plan, wishes: Wishes, maps: dict[str, str]) -> Manifest:
    """Return a JobSet: one replicated job for each task type, and all pods anew when one of them fails."""
    free = "|".join(map(str, pod.FREE))
    spec: Manifest = {
        "network": {"enableDNSHostnames": True, "subdomain": plan.name, "publishNotReadyAddresses": True},
        "failurePolicy": {
            "maxRestarts": wishes.restarts,
            "rules": [
                _rule("hopeless", "FailJobSet", f"exit code {pod.HOPELESS} "),
                _rule(
                    "nobodysFault",
                    "RestartJobSetAndIgnoreMaxRestarts",
                    f"exit code ({free}) ",
                    "has condition DisruptionTarget",
                ),
            ],
        },
        "replicatedJobs": [_replicated(plan, wishes, maps, type_) for type_ in _types(plan)],
    }
    # The task types that end by themselves: servers and evaluators go when these are done
    served = STRATEGIES[plan.strategy].served
    trainers = [type_ for type_ in _types(plan) if type_ not in served and type_ != "evaluator"]
    if len(trainers) < len(_types(plan)):
        spec["successPolicy"] = {"operator": "All", "targetReplicatedJobs": trainers}
    metadata = _metadata(plan, wishes, plan.name)
    return {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": metadata, "spec": spec}


def _rule(name: str, action: str, *patterns: str) -> Manifest:
    return {
        "name": name,
        "action": action,
        "onJobFailureReasons": ["PodFailurePolicy"],
        "onJobFailureMessagePatterns": [f".*{pattern}.*" for pattern in patterns],
    }


def _replicated(plan: Plan, wishes: Wishes, maps: dict[str, str], type_: str) -> Manifest:
    count = sum(task.id.type == type_ for task in plan.tasks)
    alone = type_ in STRATEGIES[plan.strategy].alone
    spec = {
        "completionMode": "Indexed",
        "completions": count,
        "parallelism": count,
        # The first pod that fails takes its peers with it, unless this type comes back alone.
        "backoffLimit": wishes.restarts if alone else 0,
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {"rules": list(_child_rules(alone=alone))},
        "template": _template(plan, wishes, maps, type_),
    }
    return {"name": type_, "replicas": 1, "template": {"spec": spec}}


def _child_rules(*, alone: bool) -> Iterator[Manifest]:
    """Yield what ends a replicated job, with a message by which the JobSet's policy knows the exit code."""
    action = "Ignore" if alone else "FailJob"
    yield {"action": "FailJob", "onExitCodes": _codes(pod.HOPELESS)}
    yield {"action": action, "onPodConditions": [_DISRUPTED]}
    yield {"action": action, "onExitCodes": _codes(*pod.FREE)}


_DISRUPTED: Manifest = {"type": "DisruptionTarget", "status": "True"}


def _codes(*codes: int) -> Manifest:
    return {"containerName": pod.CONTAINER, "operator": "In", "values": sorted(codes)}


def _types(plan: Plan) -> list[str]:
    return list(dict.fromkeys(task.type for task in sorted(task.id for task in plan.tasks)))


def _template(plan: Plan, wishes: Wishes, maps: dict[str, str], type_: str) -> Manifest:
    spec: Manifest = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": int(wishes.save_wait_s + plan.timing.kill_grace_s) + MARGIN_S,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "containers": [_container(plan, wishes, type_)],
        "volumes": list(_volumes(plan, wishes, maps)),
    }
    return objects.patched({"metadata": {"labels": objects.labels(plan)}, "spec": spec}, wishes)


def _container(plan: Plan, wishes: Wishes, type_: str) -> Manifest:
    gpus = max(len(task.gpus) for task in plan.tasks if type_ == task.id.type)
    return {
        "name": pod.CONTAINER,
        "image": wishes.image,
        "command": [wishes.python.replace("$", "$$"), "-I", pod.BUNDLE, "pod"],  # Kubernetes expands $(NAME)
        "env": list(_environment(plan, type_)),
        "securityContext": {"allowPrivilegeEscalation": False},
        "volumeMounts": list(_mounts(plan, wishes)),
        **objects.resources(wishes, 0 if type_ in STRATEGIES[plan.strategy].without_gpus else gpus),
    }


def _environment(plan: Plan, type_: str) -> Iterator[Manifest]:
    yield {"name": pod.TYPE, "value": type_}
    yield _field(pod.SET, _JOBSET_SET)
    yield _field(pod.ATTEMPT, _JOBSET_ATTEMPT)
    for name in plan.secrets:
        yield {"name": name, "valueFrom": {"secretKeyRef": {"name": f"{plan.name}-secrets", "key": name}}}


def _field(name: str, path: str) -> Manifest:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _mounts(plan: Plan, wishes: Wishes) -> Iterator[Manifest]:
    yield {"name": "bundle", "mountPath": "/orch/bundle", "readOnly": True}
    if wishes.code_dir is None:
        yield {"name": "code", "mountPath": "/orch/code", "readOnly": True}
    yield {"name": "host", "mountPath": pod.HOST_DIR}
    yield {"name": "shm", "mountPath": "/dev/shm"}
    if plan.checkpoint is not None:
        yield {"name": "checkpoints", "mountPath": plan.checkpoint.dir}


def _volumes(plan: Plan, wishes: Wishes, maps: dict[str, str]) -> Iterator[Manifest]:
    for volume, name in maps.items():
        yield {"name": volume, "configMap": {"name": name}}
    yield {"name": "host", "emptyDir": {}}
    yield {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": wishes.shm}}
    if plan.checkpoint is not None:
        claim = {"claimName": objects.claim_name(plan, wishes)}
        yield {"name": "checkpoints", "persistentVolumeClaim": claim}


def as_yaml(manifests: Sequence[Manifest], notes: Sequence[str]) -> str:
    """Return one document for each object, below the notes."""
    head = "".join(f"# {note}\n" for note in notes)
    return head + "".join("---\n" + _text(manifest) for manifest in manifests)


def as_list(manifests: Sequence[Manifest]) -> str:
    """Return one JSON object, which kubectl reads as well."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(manifests)}, indent=2)


class _Dumper(yaml.SafeDumper):
    """Writes a text of several lines as its lines, for people."""


def _as_lines(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _as_lines)


def _text(manifest: Manifest) -> str:
    text: str = yaml.dump(manifest, Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True)
    return text
