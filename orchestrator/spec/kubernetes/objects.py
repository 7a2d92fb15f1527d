"""What pods that are hosts and exported manifests have in common: labels, claim, resources, contents by name."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Protocol

from orchestrator.core.plan import Plan

Manifest = dict[str, Any]

GPU = "nvidia.com/gpu"

MARGIN_S = 10
"""For the record of the end, once the task has gone."""


class Asked(Protocol):
    """What both are asked for."""

    @property
    def claim(self) -> str | None:
        """A PersistentVolumeClaim that is there already, for the checkpoints."""

    @property
    def storage(self) -> str:
        """The size of one that is made."""

    @property
    def cpu(self) -> str | None:
        """The CPUs of each pod."""

    @property
    def memory(self) -> str | None:
        """The memory of each pod."""


def labels(plan: Plan) -> dict[str, str]:
    """Return the labels of every object that is written for this plan."""
    return {"app.kubernetes.io/name": plan.name, "app.kubernetes.io/managed-by": "orch"}


def digest(found: Any) -> str:
    """Return what tells one set of manifests from another."""
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()[:16]


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
    """Return a container's `resources`, as its field; nothing where nothing is asked for."""
    wanted = {key: text for key, text in (("cpu", asked.cpu), ("memory", asked.memory)) if text}
    limits = {GPU: str(gpus)} if gpus else {}
    found = {key: value for key, value in (("requests", wanted), ("limits", limits)) if value}
    return {"resources": found} if found else {}
