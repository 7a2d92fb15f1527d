"""From the freeze of a whole host to the moment in which its task is given up: how much later than `lost_after`.

Every process in the host's network namespace is stopped: sshd, agent, shim and task. Connections stay open, and nothing
is refused, so that silence is all there is to see. The others train in step with it, as in a collective, and get no
further. What the coordinator believes is asked of it every 30 ms, which is in the figure.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from benchmarks.figure import Figure, NotMeasured
from benchmarks.lab import cluster_of, lab_of
from benchmarks.recovery import has_progress
from tests.cluster.lab import LabHost

HOSTS = 3
"""One frozen of two would be half of all, and of one the coordinator would take itself to be cut off."""

REPEATS = 4
LOST_AFTER_S = 4.0
LIMIT_S = 1.0
TIMING = {
    "heartbeat": "0.5s",
    "unreachable_after": "2s",
    "lost_after": f"{LOST_AFTER_S:g}s",
    "kill_grace": "5s",
}
TIMEOUT_S = 60.0


def measure() -> list[Figure]:
    """Freezes one host of three after the other, each time after progress: then there is no backoff."""
    late: list[float] = []
    with lab_of(HOSTS) as lab, cluster_of(lab) as cluster:
        cluster.ok("up", cluster.spec("--steps", "1000000", "--lockstep", tasks=HOSTS, timing=TIMING))
        for repeat in range(REPEATS):
            before = cluster.wait(has_progress, timeout=TIMEOUT_S)
            began = time.monotonic()
            with frozen(lab.hosts[repeat % HOSTS]):
                cluster.wait(partial(_is_given_up, before["generation"]), timeout=TIMEOUT_S)
                late.append(time.monotonic() - began - LOST_AFTER_S)
        lost = len(cluster.events(kind="task-lost"))
    if lost != REPEATS:
        raise NotMeasured(f"{lost} tasks were given up for {REPEATS} frozen hosts")
    return [
        Figure(
            f"a frozen host is given up, over lost_after ({LOST_AFTER_S:g} s)",
            "s",
            LIMIT_S,
            tuple(late),
            f"heartbeat {TIMING['heartbeat']}",
        )
    ]


@contextmanager
def frozen(host: LabHost) -> Iterator[None]:
    """No process of the host runs. NotMeasured where hosts share this machine's network: they cannot be told apart."""
    if host.namespace is None:
        raise NotMeasured("hosts need network namespaces of their own, and root")
    stopped: dict[int, None] = {}
    try:
        while fresh := [
            pid for pid in _pids(host.namespace) if pid not in stopped
        ]:  # one may have forked meanwhile
            for pid in fresh:
                os.kill(pid, signal.SIGSTOP)
                stopped[pid] = None
        yield
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)


def _pids(namespace: str) -> list[int]:
    listed = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True, check=True)
    return [int(pid) for pid in listed.stdout.split()]


def _is_given_up(generation: int, run: dict[str, Any]) -> bool:
    return bool(run["phase"] != "RUNNING" or run["generation"] > generation)
