"""What the coordinator costs the head node while nothing happens, with three hosts and a run that trains."""

from __future__ import annotations

import time

from benchmarks import proc
from benchmarks.figure import Figure
from benchmarks.lab import DEFAULT_TIMING, cluster_of, lab_of
from benchmarks.limits import LIMITS

HOSTS = 3
WINDOWS = 5
WINDOW_S = 20.0
SETTLE_S = 5.0


def measure() -> list[Figure]:
    """Measure the CPU in windows of 20 s without any request, and the memory at the end of each."""
    cpu: list[float] = []
    rss: list[float] = []
    with lab_of(HOSTS) as lab, cluster_of(lab) as cluster:
        spec = cluster.spec("--steps", "1000000", "--pace", "0.1", tasks=HOSTS, timing=DEFAULT_TIMING)
        cluster.ok("up", spec)
        cluster.wait_step(1)
        pid = cluster.coordinator_pid
        time.sleep(SETTLE_S)
        for _ in range(WINDOWS):
            before, began = proc.cpu_s(pid), time.monotonic()
            time.sleep(WINDOW_S)
            cpu.append((proc.cpu_s(pid) - before) / (time.monotonic() - began) * 100)
            rss.append(proc.rss_mb(pid))
    note = f"{HOSTS} hosts, a run, checkpoints verified; heartbeat 2 s"
    return [
        Figure("coordinator idle, CPU", "% core", LIMITS["idle: CPU"], tuple(cpu), note),
        Figure("coordinator idle, resident", "MB", LIMITS["idle: resident"], tuple(rss)),
    ]
