"""An allocation of pods in the test's cluster, as `orch up --on k8s` makes it, but by hand."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

from orchestrator.core.plan import HostPlan, Plan
from orchestrator.head.code import bundle
from orchestrator.head.reach.kubernetes import lent
from orchestrator.head.reach.kubernetes.commands import find
from orchestrator.spec.kubernetes.hosts import PodWishes, in_pods, pod_manifests
from tests.kubernetes.cluster import Cluster
from tests.patience import comes

SOON_S = 15.0


def within(seconds: float, happens: Callable[[], bool]) -> bool:
    """Wait until that is so; return whether it came to that."""
    return comes(happens, seconds)


class Pods:
    """Pods that are lent, with their keepers."""

    def __init__(self, directory: Path, cluster: Cluster, count: int = 1, name: str = "t") -> None:
        self.state_dir = str(directory)
        plan = Plan(
            name,
            "single",
            tuple(HostPlan(f"h{i}", python=sys.executable) for i in range(count)),
            (),
            "t.py",
        )
        self.lent = lent.new(name, find({"PATH": cluster.path}, None, None), count, "")
        lent.keep(self.state_dir, self.lent)
        found = pod_manifests(plan, PodWishes("mine:1"), bundle.packed(), self.lent.id)
        everything = {"apiVersion": "v1", "kind": "List", "items": found}
        self.lent.cluster.call(
            "create", "--validate=false", "--filename=-", stdin=json.dumps(everything).encode()
        )
        self.hosts = in_pods(plan, self.lent.id).hosts
        assert within(SOON_S, lambda: self.lent.check(self.lent.count)[1] is None), self.lent.check(1)
