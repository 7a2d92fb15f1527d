"""What `orch doctor`, and the quick part of it in `orch up`, take for 32 hosts, beside connecting to them."""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks.connect import HOSTS, connect, transport_of, warm_up
from benchmarks.figure import Figure, NotMeasured
from benchmarks.lab import cluster_of, lab_of
from benchmarks.limits import LIMITS
from orchestrator.core.plan import Plan
from orchestrator.head.code import bundle
from orchestrator.head.hosts.examination import examine
from orchestrator.head.reach.ssh.transport import SshTransport
from orchestrator.spec.plan import load_plan

ROUNDS = 5
NEIGHBOURS = Path("/proc/sys/net/ipv4/neigh/default/gc_thresh3")
"""How many neighbours the kernel knows at once, those of all network namespaces together."""


def measure() -> list[Figure]:
    """Examine all hosts of a lab. Raises NotMeasured where the kernel does not know so many neighbours."""
    needed = 2 * HOSTS * HOSTS
    if int(NEIGHBOURS.read_text()) < needed:
        raise NotMeasured(
            f"all hosts of the lab share one table: sysctl -w net.ipv4.neigh.default.gc_thresh3={needed}"
        )
    quick, whole = [], []
    with lab_of(HOSTS) as lab, transport_of() as transport, cluster_of(lab) as cluster:
        plan, _ = load_plan(cluster.spec(tasks=HOSTS))
        warm_up(transport, lab.hosts)
        for _ in range(ROUNDS):
            connecting_ms = connect(transport, lab.hosts).wall_ms
            quick.append(_examined_s(plan, transport, whole=False) * 1000 / connecting_ms)
            whole.append(_examined_s(plan, transport, whole=True))
    part = "the quick part, of connecting"
    return [
        Figure(f"{part} to {HOSTS} hosts", "x", LIMITS[f"doctor: {part}"], tuple(quick)),
        Figure(f"`orch doctor` of {HOSTS} hosts, all pairs", "s", LIMITS["doctor: all pairs"], tuple(whole)),
    ]


def _examined_s(plan: Plan, transport: SshTransport, *, whole: bool) -> float:
    began = time.perf_counter()
    examined = examine(plan, {"ssh": transport}, bundle.load, whole=whole)
    if examined.errors:
        raise NotMeasured(examined.errors[0].message)
    return time.perf_counter() - began
