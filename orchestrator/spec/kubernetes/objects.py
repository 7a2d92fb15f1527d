"""The parts that pods as hosts and exported manifests share: labels, claim, resources, names by content."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.core.plan import Plan
from orchestrator.protocol.pod import CONTAINER, NAME_LABEL
from orchestrator.spec.diagnostics import Loc

Manifest = dict[str, Any]

GPU = "nvidia.com/gpu"

MARGIN_S = 10
"""For the record of the end, once the task has gone."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The options that both have."""

    image: str
    namespace: str | None = None
    claim: str | None = None
    """A PersistentVolumeClaim that is there already, for the checkpoints."""
    storage: str = "20Gi"
    """The size of one that is made."""
    shm: str = "2Gi"
    cpu: str | None = None
    memory: str | None = None
    pod: Mapping[str, Any] | None = None
    """A patch of the pod template, in Kubernetes' own words."""


def in_no_pod(plan: Plan) -> Iterator[tuple[Loc, str]]:
    """Yield what no pod can be, each with its place in the spec."""
    if plan.name[0].isdigit():
        yield ("name",), "Kubernetes wants a letter first: the name becomes that of a Service"
    if plan.options.tpu is not None:
        yield ("run", "tpu"), "a TPU is not asked for; use the GPU strategies, or SSH to the TPU VM"
    if plan.checkpoint is not None and ":" in plan.checkpoint.dir:
        yield ("run", "checkpoint", "dir"), "a volume's path in a pod has no colon"


def labels(plan: Plan) -> dict[str, str]:
    """Return the labels of every object that is written for this plan."""
    return {NAME_LABEL: plan.name, "app.kubernetes.io/managed-by": "orch"}


def digest(content: Any) -> str:
    """Return a digest of a content, by which manifests are named."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def claim_name(plan: Plan, asked: Asked) -> str:
    """Return the claim of the checkpoints."""
    return asked.claim or f"{plan.name}-checkpoints"


def claim(plan: Plan, asked: Asked, pods: int) -> Manifest:
    """Return the claim that this many pods mount."""
    mode = "ReadWriteMany" if pods > 1 else "ReadWriteOnce"
    spec = {"accessModes": [mode], "resources": {"requests": {"storage": asked.storage}}}
    metadata = {"name": claim_name(plan, asked), "labels": labels(plan)}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}


def resources(asked: Asked, gpus: int) -> Manifest:
    """Return a container's `resources`, as its field; nothing if nothing is asked for."""
    wanted = {key: text for key, text in (("cpu", asked.cpu), ("memory", asked.memory)) if text}
    limits = {
        **wanted,
        **({GPU: str(gpus)} if gpus else {}),
    }  # a LimitRange's limit may be less than what is asked for
    fields = {key: value for key, value in (("requests", wanted), ("limits", limits)) if value}
    return {"resources": fields} if fields else {}


def patched(template: Manifest, asked: Asked) -> Manifest:
    """Return the pod template with the patch of `kubernetes: {pod: …}`. Our labels stay: pods are found by them."""
    merged: Manifest = _merged(template, asked.pod or {})
    merged["metadata"]["labels"] = {**merged["metadata"]["labels"], **template["metadata"]["labels"]}
    return merged


def _merged(ours: Any, theirs: Any, key: str = "") -> Any:
    """Merge as Kubernetes does: mappings by their keys, of which null removes one, named items by name; else theirs."""
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        merged = {name: _merged(ours.get(name), value, name) for name, value in theirs.items()}
        return {name: value for name, value in {**ours, **merged}.items() if value is not None}
    if isinstance(ours, list) and isinstance(theirs, list):
        by = "mountPath" if key == "volumeMounts" else "name"
        if all(isinstance(part, Mapping) and by in part for part in [*ours, *theirs]):
            named = {part[by]: part for part in ours}
            return list(
                {**named, **{part[by]: _merged(named.get(part[by]), part) for part in theirs}}.values()
            )
    return theirs


def refused(patch: Mapping[str, Any]) -> Iterator[tuple[Loc, str]]:
    """Yield what is not allowed in a patch, each with its place in it."""
    for key, value in patch.items():
        if key not in ("metadata", "spec") or not isinstance(value, Mapping):
            yield (key,), "is none of a pod template, which has `metadata: {…}` and `spec: {…}`"
            return
    containers = patch.get("spec", {}).get("containers") or ()
    for i, part in enumerate(containers if isinstance(containers, list) else ()):
        for key in ("command", "args"):
            if isinstance(part, Mapping) and part.get("name") == CONTAINER and key in part:
                yield ("spec", "containers", i, key), "is what orch starts there; `run:` says what is trained"


def place_of(sentence: str, asked: Asked) -> Loc:
    """Return the place in the file that an error of the API server is about, as near as its text shows."""
    for path in re.findall(r"\b(?:spec|metadata)\.[\w.\[\]/-]+", sentence):
        at: Any = asked.pod or {}
        loc: list[str] = []
        for word in re.split(r"[.\[\]]+", path.removeprefix("spec.template.")):
            if not isinstance(at, Mapping) or word not in at:
                break
            loc, at = [*loc, word], at[word]
        if len(loc) > 1:
            return ("kubernetes", "pod", *loc)
    for word in ("memory", "cpu", "image", "storage"):
        if word in sentence and getattr(asked, word, None):
            return ("kubernetes", word)
    if "requested: pods=" in sentence:
        return ("kubernetes", "pods")
    return ("kubernetes", "pod") if asked.pod else ("kubernetes",)
