"""The manifests: ConfigMaps, claim, and a JobSet.

Everything of the user's is a YAML value; the container's command is fixed, and no shell reads it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from typing import Any

import yaml

from orchestrator.core.plan import Plan
from orchestrator.core.strategy import STRATEGIES
from orchestrator.protocol import pod
from orchestrator.spec.kubernetes.settings import settings
from orchestrator.spec.kubernetes.wishes import Wishes

Manifest = dict[str, Any]

_MARGIN_S = 10
"""For the record of the end, once the task has gone."""

_JOBSET_SET = "metadata.labels['jobset.sigs.k8s.io/jobset-uid']"
_JOBSET_ATTEMPT = "metadata.labels['jobset.sigs.k8s.io/restart-attempt']"
_GPU = "nvidia.com/gpu"


def manifests(plan: Plan, wishes: Wishes, bundle: bytes, code: bytes | None) -> list[Manifest]:
    """Return all objects, in the order in which they are created.

    Args:
        plan: what `refusals` had nothing against.
        wishes: the options.
        bundle: our own code, as hosts get it.
        code: the user's code as a zip archive; None where the image has it.
    """
    found = [_bundle_map(plan, wishes, bundle)]
    if code is not None:
        binary = {"code.zip": base64.b64encode(code).decode("ascii")}
        found.append({**_head("v1", "ConfigMap", plan, wishes, "code"), "binaryData": binary})
    if plan.checkpoint is not None and wishes.claim is None:
        found.append(_claim(plan, wishes))
    return [*found, _jobset(plan, wishes)]


def _head(api: str, kind: str, plan: Plan, wishes: Wishes, part: str = "") -> Manifest:
    name = f"{plan.name}-{part}" if part else plan.name
    metadata: Manifest = {"name": name, "labels": _labels(plan)}
    if wishes.namespace is not None:
        metadata["namespace"] = wishes.namespace
    return {"apiVersion": api, "kind": kind, "metadata": metadata}


def _labels(plan: Plan) -> dict[str, str]:
    return {"app.kubernetes.io/name": plan.name, "app.kubernetes.io/managed-by": "orch"}


def _bundle_map(plan: Plan, wishes: Wishes, bundle: bytes) -> Manifest:
    return {
        **_head("v1", "ConfigMap", plan, wishes, "orch"),
        "data": {"pod.json": json.dumps(settings(plan, wishes), indent=1)},
        "binaryData": {"orch.pyz": base64.b64encode(bundle).decode("ascii")},
    }


def _claim(plan: Plan, wishes: Wishes) -> Manifest:
    mode = "ReadWriteMany" if len(plan.tasks) > 1 else "ReadWriteOnce"
    spec = {"accessModes": [mode], "resources": {"requests": {"storage": wishes.storage}}}
    return {**_head("v1", "PersistentVolumeClaim", plan, wishes, "checkpoints"), "spec": spec}


def _jobset(plan: Plan, wishes: Wishes) -> Manifest:
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
        "replicatedJobs": [_replicated(plan, wishes, type_) for type_ in _types(plan)],
    }
    trainers = _trainers(plan)
    if len(trainers) < len(_types(plan)):
        spec["successPolicy"] = {"operator": "All", "targetReplicatedJobs": trainers}
    return {**_head("jobset.x-k8s.io/v1alpha2", "JobSet", plan, wishes), "spec": spec}


def _rule(name: str, action: str, *patterns: str) -> Manifest:
    return {
        "name": name,
        "action": action,
        "onJobFailureReasons": ["PodFailurePolicy"],
        "onJobFailureMessagePatterns": [f".*{pattern}.*" for pattern in patterns],
    }


def _replicated(plan: Plan, wishes: Wishes, type_: str) -> Manifest:
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
        "template": _template(plan, wishes, type_),
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


def _trainers(plan: Plan) -> list[str]:
    """Return the task types that end by themselves: servers and evaluators go when these are done."""
    served = STRATEGIES[plan.strategy].served
    return [type_ for type_ in _types(plan) if type_ not in served and type_ != "evaluator"]


def _template(plan: Plan, wishes: Wishes, type_: str) -> Manifest:
    spec: Manifest = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": int(wishes.save_wait_s + plan.timing.kill_grace_s) + _MARGIN_S,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "containers": [_container(plan, wishes, type_)],
        "volumes": list(_volumes(plan, wishes)),
    }
    return {"metadata": {"labels": _labels(plan)}, "spec": spec}


def _container(plan: Plan, wishes: Wishes, type_: str) -> Manifest:
    found: Manifest = {
        "name": pod.CONTAINER,
        "image": wishes.image,
        "command": [wishes.python.replace("$", "$$"), pod.BUNDLE, "pod"],  # Kubernetes expands $(NAME)
        "env": list(_environment(plan, type_)),
        "securityContext": {"allowPrivilegeEscalation": False},
        "volumeMounts": list(_mounts(plan, wishes)),
    }
    gpus = max(len(task.gpus) for task in plan.tasks if type_ == task.id.type)
    limits = {_GPU: str(gpus)} if gpus and type_ not in STRATEGIES[plan.strategy].without_gpus else {}
    asked = {key: text for key, text in (("cpu", wishes.cpu), ("memory", wishes.memory)) if text}
    if limits or asked:
        found["resources"] = {
            **({"requests": asked} if asked else {}),
            **({"limits": limits} if limits else {}),
        }
    return found


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


def _volumes(plan: Plan, wishes: Wishes) -> Iterator[Manifest]:
    yield {"name": "bundle", "configMap": {"name": f"{plan.name}-orch"}}
    if wishes.code_dir is None:
        yield {"name": "code", "configMap": {"name": f"{plan.name}-code"}}
    yield {"name": "host", "emptyDir": {}}
    yield {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": wishes.shm}}
    if plan.checkpoint is not None:
        claim = wishes.claim or f"{plan.name}-checkpoints"
        yield {"name": "checkpoints", "persistentVolumeClaim": {"claimName": claim}}


def as_yaml(found: Sequence[Manifest], notes: Sequence[str]) -> str:
    """Return one document for each object, below the notes."""
    head = "".join(f"# {note}\n" for note in notes)
    return head + "".join("---\n" + _text(manifest) for manifest in found)


def as_list(found: Sequence[Manifest]) -> str:
    """Return one JSON object, which kubectl reads as well."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(found)}, indent=2)


class _Dumper(yaml.SafeDumper):
    """Writes a text of several lines as its lines, for people."""


def _as_lines(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _as_lines)


def _text(manifest: Manifest) -> str:
    text: str = yaml.dump(manifest, Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True)
    return text
