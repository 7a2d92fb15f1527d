"""How much later than `lost_after` the coordinator gives up the task of a host that is frozen as a whole.

Every process in the host's network namespace is stopped: sshd, agent, shim and task. Connections stay open and nothing
is refused, so the coordinator can only notice the silence. The other tasks train in lockstep, as in a collective, and
make no progress. The coordinator's state is polled every 30 ms, which the figure includes.

The silence begins with the host's last report, at most one heartbeat before the stop. So the host may be given up as
much sooner than `lost_after`, counted from the stop. Any sooner is a miss.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from benchmarks.figure import Figure, NotMeasured
from benchmarks.lab import cluster_of, lab_of
from benchmarks.limits import LIMITS
from benchmarks.recovery import has_progress
from tests.cluster.lab import LabHost

HOSTS = 3
"""With fewer hosts, the frozen one would be at least half of them, and the coordinator would assume it is cut off
itself."""

REPEATS = 4
LOST_AFTER_S = 4.0
HEARTBEAT_S = 0.5
TIMING = {
    "heartbeat": f"{HEARTBEAT_S:g}s",
    "unreachable_after": "2s",
    "lost_after": f"{LOST_AFTER_S:g}s",
    "kill_grace": "5s",
}
TIMEOUT_S = 60.0


def measure() -> list[Figure]:
    """Freeze one of three hosts after the other, each time after progress, so that there is no backoff."""
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
    return figures(late)


def figures(late: Sequence[float]) -> list[Figure]:
    """Return the rows for hosts that were given up so many seconds after `lost_after`; before it, they are negative."""
    return [
        Figure(
            f"a frozen host is given up, over lost_after ({LOST_AFTER_S:g} s)",
            "s",
            LIMITS["frozen: late"],
            tuple(late),
            f"heartbeat {HEARTBEAT_S:g} s",
        ),
        Figure(
            "the same, too early: the soonest, before lost_after less a heartbeat",
            "s",
            LIMITS["frozen: too early"],
            (max(0.0, -HEARTBEAT_S - min(late)),),
        ),
    ]


@contextmanager
def frozen(host: LabHost) -> Iterator[None]:
    """Stop every process of a host. Raises NotMeasured where hosts have no namespaces to tell their processes apart."""
    if host.namespace is None:
        raise NotMeasured("hosts need network namespaces of their own, and root")
    stopped: dict[int, None] = {}
    try:
        # Look again after each pass: a process may have forked before it was stopped.
        while fresh := [pid for pid in _pids(host.namespace) if pid not in stopped]:
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
