"""The time from kill -9 of a task to the end of its peers, and to the processes of the next generation.

Both are measured from outside: the end of a peer by its pidfd, and the beginning of a process by the kernel's start
time. So the figures also include the transport and the execution of the orders. The peers of the fake trainer would
end by themselves 300 ms after the kill. So that there are enough kills for a 99th percentile, the tasks save nothing,
and no restart waits.
"""

from __future__ import annotations

import os
import select
import signal
import time
from functools import partial
from typing import Any

from benchmarks import proc
from benchmarks.figure import Figure, NotMeasured
from benchmarks.lab import DEFAULT_TIMING, cluster_of, lab_of
from benchmarks.length import is_long
from benchmarks.limits import LIMITS

TASKS = 3
REPEATS = 120
REPEATS_LONG = 500
TIMEOUT_S = 60.0


def measure() -> list[Figure]:
    """Kill one of three workers repeatedly, each time once all of them have made a step."""
    restart = {"backoff": "0s", "backoff_max": "0s", "without_progress_max": 1000}
    repeats = REPEATS_LONG if is_long() else REPEATS
    peers: list[float] = []
    started: list[float] = []
    with lab_of(TASKS) as lab, cluster_of(lab) as cluster:
        spec = cluster.spec(
            "--steps", "1000000", tasks=TASKS, timing=DEFAULT_TIMING, checkpoint=False, restart=restart
        )
        cluster.ok("up", spec)
        for repeat in range(repeats):
            before = cluster.wait(_trains, timeout=TIMEOUT_S)
            pids = [int(task["pid"]) for task in before["tasks"]]
            victim = pids.pop(repeat % TASKS)
            killed_at, ended_ms = _kill(victim, pids)
            peers.append(ended_ms)
            after = cluster.wait(partial(_has_started, before["generation"] + 1), timeout=TIMEOUT_S)
            begun = max(proc.began_s(int(task["pid"])) for task in after["tasks"])
            started.append((begun - killed_at) * 1000)
    slowest = sorted(peers)[-(len(peers) // 100) - 1]
    return [
        Figure(
            "kill -9 of a task to the end of its last peer",
            "ms",
            LIMITS["recovery: until the peers have ended"],
            tuple(peers),
        ),
        Figure(
            f"the same, 99th percentile of {len(peers)}",
            "ms",
            LIMITS["recovery: until the peers have ended"],
            (slowest,),
            f"the slowest {max(peers):.0f} ms",
        ),
        Figure(
            "kill -9 of a task to all processes of the next generation",
            "ms",
            LIMITS["recovery: until the next generation starts"],
            tuple(started),
            "the kernel's start times are 10 ms fine",
        ),
    ]


def _kill(victim: int, peers: list[int]) -> tuple[float, float]:
    """Kill a task. Return when (CLOCK_BOOTTIME), and the milliseconds to the end of the last peer."""
    poll = select.poll()
    watched = [os.pidfd_open(pid) for pid in peers]
    for descriptor in watched:
        poll.register(descriptor, select.POLLIN)
    killed_at = time.clock_gettime(time.CLOCK_BOOTTIME)
    os.kill(victim, signal.SIGKILL)
    left = set(watched)
    while left:
        ended = [descriptor for descriptor, _ in poll.poll(TIMEOUT_S * 1000)]
        if not ended:
            raise NotMeasured("the peers outlived the minute after the kill")
        for descriptor in ended:
            left.discard(descriptor)
            poll.unregister(descriptor)
            os.close(descriptor)
    return killed_at, (time.clock_gettime(time.CLOCK_BOOTTIME) - killed_at) * 1000


def _trains(run: dict[str, Any]) -> bool:
    """Return whether all tasks have made a step: before that, a failure is waited with for others like it."""
    return run["phase"] == "RUNNING" and all(
        task["phase"] == "RUNNING" and task["global_step"] for task in run["tasks"]
    )


def has_progress(run: dict[str, Any]) -> bool:
    """Return whether a checkpoint of the current generation has been verified."""
    known = run["checkpoint"]
    return (
        run["phase"] == "RUNNING"
        and known is not None
        and f"gen-{run['generation']:06d}" in known["path"]
        and all(task["phase"] == "RUNNING" and task["global_step"] for task in run["tasks"])
    )


def _has_started(generation: int, run: dict[str, Any]) -> bool:
    return run["generation"] == generation and all(
        task["pid"] and task["generation"] == generation for task in run["tasks"]
    )
