"""What orch costs a training: the same script by hand and under orch, with the same TF_CONFIG except for the port.

There is one worker, so that Keras 3 runs by hand without a patch, and two cores suffice. The two take turns of some
steps (see workdir/steps.py), and each block is compared with the other's blocks before and after it. The CPU of agent
and shim, which run beside the training, is added as if it slowed down the steps.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from statistics import median, stdev
from typing import Any

from benchmarks import proc
from benchmarks.figure import Figure, NotMeasured
from benchmarks.lab import DEFAULT_TIMING, cluster_of
from benchmarks.limits import LIMITS
from tests.cluster.cluster import Cluster

BLOCKS = 50
TIMEOUT_S = 900.0
WORKDIR = Path(__file__).parent / "workdir"


def measure() -> list[Figure]:
    """Measure the overhead in percent of the step time."""
    with cluster_of(None) as cluster:
        batons = [str(cluster.directory / name) for name in ("to-orch", "to-hand")]
        for baton in batons:
            os.mkfifo(baton)
        ends = [os.open(baton, os.O_RDWR) for baton in batons]  # so that a byte outlives its writer
        times = [str(cluster.directory / name) for name in ("orch.json", "hand.json")]
        try:
            hand = _by_hand([batons[1], batons[0], times[1]])
            try:
                return _under_orch(cluster, hand, [*batons, times[0]], times, ends)
            finally:
                hand.kill()
                hand.wait()
        finally:
            for end in ends:
                os.close(end)


def _under_orch(
    cluster: Cluster, hand: subprocess.Popen[bytes], arguments: list[str], times: list[str], ends: list[int]
) -> list[Figure]:
    spec = cluster.spec(
        *arguments,
        str(BLOCKS),
        tasks=1,
        script="steps.py",
        workdir=str(WORKDIR),
        checkpoint=False,
        env={"TF_CPP_MIN_LOG_LEVEL": "2"},
        timing=DEFAULT_TIMING,
    )
    cluster.ok("up", spec)
    task = cluster.wait(lambda run: run["phase"] == "RUNNING", timeout=60.0)["tasks"][0]
    beside = [proc.parent(task["pid"]), *proc.children(cluster.coordinator_pid)]
    before = sum(map(proc.cpu_s, beside))
    os.write(ends[0], b"x")
    cpu_s = _await(times, hand, beside, cluster) - before
    orch, by_hand = (json.loads(Path(path).read_text()) for path in times)
    return _figures(orch, by_hand, cpu_s)


def _figures(orch: dict[str, Any], by_hand: dict[str, Any], beside_s: float) -> list[Figure]:
    beside = beside_s / sum(block[0] for block in orch["blocks"]) * 100
    figures = []
    for index, what in enumerate(("step time", "CPU of a step")):
        mine, theirs = ([block[index] for block in done["blocks"]] for done in (orch, by_hand))
        # orch goes first: by hand comes after it, and before its next block.
        pairs = zip(mine[1:], theirs, theirs[1:], strict=False)
        samples = tuple((own / ((before + after) / 2) - 1) * 100 + beside for own, before, after in pairs)
        error = 1.25 * stdev(samples) / len(samples) ** 0.5
        each_ms = median(theirs) / by_hand["steps"] * 1000
        note = f"± {error:.1f} (standard error); {each_ms:.0f} ms a step by hand; agent and shim {beside:.2f}"
        figures.append(
            Figure(
                f"{what} under orch, over by hand", "%", LIMITS["overhead: of a step"], samples, note, error
            )
        )
    return figures


def _by_hand(arguments: list[str]) -> subprocess.Popen[bytes]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = {"cluster": {"worker": [f"127.0.0.1:{port}"]}, "task": {"type": "worker", "index": 0}}
    env = {**os.environ, "TF_CONFIG": json.dumps(config), "TF_CPP_MIN_LOG_LEVEL": "2"}
    command = [sys.executable, "steps.py", *arguments, str(BLOCKS)]
    return subprocess.Popen(
        command, cwd=WORKDIR, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def _await(times: list[str], hand: subprocess.Popen[bytes], beside: list[int], cluster: Cluster) -> float:
    """Wait until both are done. Return the CPU of the processes beside the training while all of them lived."""
    deadline = time.monotonic() + TIMEOUT_S
    cpu_s = 0.0
    while not all(os.path.exists(path) for path in times):
        if time.monotonic() > deadline:
            raise NotMeasured(f"not done in {TIMEOUT_S:.0f} s: {cluster.ok('logs', 't', '--tail', '5')}")
        if hand.poll() is not None and not os.path.exists(times[1]):
            raise NotMeasured(f"the script by hand ended with {hand.returncode}")
        with contextlib.suppress(OSError):
            cpu_s = sum(map(proc.cpu_s, beside))
        time.sleep(0.5)
    return cpu_s
