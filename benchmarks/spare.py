"""From the moment that a host is cut off to the first new step, on a spare host whose standby takes over.

Real TensorFlow with two workers, each on a host, and a third host that is a spare. Each turn is a run of its own. A
worker is killed first: what follows is a start with a standby on hosts that are there. Then that worker's host is cut
off the network. It counts as lost once it has been silent for `lost_after`, and the spare's standby is released. The
claim is what that takes beyond the silence and the start before it. The host's last report may be as old as a heartbeat
when it is cut off, so the claim may be kept by as much more.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from benchmarks.comeback import SCRIPT, TIMEOUT_S, Start, first_steps, forget_times, saved
from benchmarks.figure import Figure, Point
from benchmarks.frozen import LOST_AFTER_S, TIMING
from benchmarks.lab import cluster_of, lab_of
from benchmarks.limits import LIMITS
from tests.cluster.cluster import Cluster, wait_until
from tests.cluster.lab import Lab

WORKERS = 2
REPEATS = 3


def measure() -> list[Figure]:
    """Measure each turn in a cluster of its own, in which every host is where the spec has it."""
    with lab_of(WORKERS + 1) as lab:
        turns = [_turn(lab, victim=repeat % WORKERS) for repeat in range(REPEATS)]
    plot = "a host is cut off, to the first new step on a spare"
    seconds = [
        ("a worker is killed, to the first new step", tuple(killed.total_s for killed, _ in turns)),
        ("a host is cut off, to the first new step", tuple(cut.total_s for _, cut in turns)),
    ]
    more = tuple(cut.total_s - LOST_AFTER_S - killed.total_s for killed, cut in turns)
    return [
        *(
            Figure(f"{what} (spare, standby)", "s", float("inf"), samples, point=Point(plot, what))
            for what, samples in seconds
        ),
        Figure(
            f"the latter, over lost_after ({LOST_AFTER_S:g} s) and the former",
            "s",
            LIMITS["spare: late"],
            more,
        ),
    ]


def _turn(lab: Lab, victim: int) -> tuple[Start, Start]:
    """Return the start after a kill, and the one after the cut of that host."""
    with cluster_of(lab) as cluster:
        times = cluster.directory / "times" / "orch"
        times.parent.mkdir()
        hosts = cluster.hosts(WORKERS + 1)
        hosts[WORKERS]["spare"] = True
        spec = cluster.spec(
            *(str(cluster.directory / "by-hand"), str(times)),
            tasks=WORKERS,
            hosts=hosts,
            **SCRIPT,
            timing={**TIMING, "stall_after": "1h"},
            restart={"standby": "on"},
        )
        cluster.ok("up", spec, timeout=TIMEOUT_S)
        before = _ready(cluster, times)
        forget_times(times, WORKERS)
        killed_at = _now()
        os.kill(int(before["tasks"][victim]["pid"]), signal.SIGKILL)
        killed = first_steps(times, WORKERS, killed_at)
        _ready(cluster, times)
        forget_times(times, WORKERS)
        cut_at = _now()
        lab.host(victim).cut()
        try:
            return killed, first_steps(times, WORKERS, cut_at)
        finally:
            lab.host(victim).heal()


def _ready(cluster: Cluster, times: Path) -> dict[str, Any]:
    """Wait until the tasks have saved, that checkpoint is verified, and a standby waits."""
    wait_until(
        lambda: all(path.exists() for path in saved(times, WORKERS)), "the first save", timeout=TIMEOUT_S
    )
    return cluster.wait(
        lambda run: (
            run["phase"] == "RUNNING"
            and run["standby"]["state"] == "ready"
            and f"gen-{run['generation']:06d}" in (run["checkpoint"] or {"path": ""})["path"]
        ),
        timeout=TIMEOUT_S,
    )


def _now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
