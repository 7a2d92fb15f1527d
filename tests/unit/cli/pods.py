"""Pods that are lent, and a kubectl for them that speaks as kubectl does. No process runs in them."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.head.reach.kubernetes import lent
from orchestrator.head.reach.kubernetes.commands import Cluster
from orchestrator.head.reach.kubernetes.pods import CONTAINER
from orchestrator.protocol.pod import ALLOCATION_LABEL, NAME_LABEL
from tests.kubernetes.kubectl import objects, put
from tests.unit.cli.desk import Desk

KUBECTL = Path(__file__).parents[2] / "kubernetes" / "kubectl.py"


class Pods:
    """A cluster that is a directory, and allocations in it."""

    def __init__(self, directory: Path, desk: Desk) -> None:
        self._top = directory / "cluster"
        self._state_dir = desk.paths.state_dir
        (self._top / "objects").mkdir(parents=True)
        self._tool = self._top / "kubectl"
        desk.environ = {**desk.environ, "PATH": f"{self._top}:{os.defpath}"}
        self._tool.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {KUBECTL} {self._top} "$@"\n')
        self._tool.chmod(0o755)
        self.set()

    def set(self, **settings: Any) -> None:
        """Change how the cluster is: `down`, `forbidden`, `full`."""
        document = {"contexts": ["lab"], "current": "lab", "namespace": "lab", **settings}
        (self._top / "settings.json").write_text(json.dumps(document))

    def lend(
        self, name: str, *, has_run: bool = False, claim: str = "", count: int = 1, first: int = 0
    ) -> lent.Lent:
        """Lend a StatefulSet."""
        cluster = Cluster(str(self._tool), "lab", "lab")
        made = replace(lent.new(name, cluster, count, "", claim, first), has_run=has_run)
        lent.keep(self._state_dir, made)
        labels = {ALLOCATION_LABEL: made.id}
        put(self._top, {"kind": "StatefulSet", "metadata": {"name": name, "uid": "1", "labels": labels}})
        return made

    def run(self, name: str, made: lent.Lent, **waiting: str) -> None:
        """Let a pod run, or wait with this reason and message."""
        labels = {ALLOCATION_LABEL: made.id}
        state = {"waiting": waiting} if waiting else {"running": {}}
        status = {"containerStatuses": [{"name": CONTAINER, "state": state}]}
        put(
            self._top,
            {"kind": "Pod", "metadata": {"name": name, "uid": "2", "labels": labels}, "status": status},
        )

    @property
    def lent(self) -> list[str]:
        """The names of the allocations that are not given back."""
        return sorted(one.name for one in lent.all_of(self._state_dir))

    def leaving(self, name: str, node: str) -> None:
        """Let a pod of an older set be deleted for ever, on a node that is gone."""
        labels = {NAME_LABEL: name.rpartition("-")[0], ALLOCATION_LABEL: "older"}
        metadata = {"name": name, "uid": "3", "labels": labels, "deletionTimestamp": "2026-01-01T00:00:00Z"}
        put(self._top, {"kind": "Pod", "metadata": metadata, "spec": {"nodeName": node}, "status": {}})

    def event(self, name: str, message: str) -> None:
        """Let the controller of a StatefulSet say why it makes no pod."""
        event = {"kind": "Event", "type": "Warning", "metadata": {"name": f"{name}.1"}, "message": message}
        put(self._top, {**event, "reason": "FailedCreate", "lastTimestamp": "2026-01-01T00:00:00Z"})

    def claim(self, name: str, allocation: str = "") -> None:
        """Make a claim, for an allocation or by somebody else."""
        labels = {ALLOCATION_LABEL: allocation} if allocation else {}
        metadata = {"name": name, "uid": f"of-{name}", "labels": labels}
        put(self._top, {"kind": "PersistentVolumeClaim", "metadata": metadata})

    @property
    def claims(self) -> list[str]:
        """The names of the claims in the cluster."""
        return [one["metadata"]["name"] for one in objects(self._top, "PersistentVolumeClaim")]

    @property
    def names(self) -> list[str]:
        """The kinds and names of all objects in the cluster."""
        return sorted(
            path.name.removesuffix(".json").replace(".", "/", 1) for path in self._top.glob("objects/*")
        )

    @property
    def sets(self) -> list[str]:
        """The names of the StatefulSets in the cluster."""
        return [one["metadata"]["name"] for one in objects(self._top, "StatefulSet")]
