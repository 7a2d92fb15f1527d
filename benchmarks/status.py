"""The time of `orch status`. People use it often, also in prompts and loops, so it must be as fast as `ls`."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping

from benchmarks.figure import Figure
from benchmarks.lab import cluster_of
from benchmarks.limits import LIMITS, Limit

REPEATS = 25


def measure() -> list[Figure]:
    """Measure whole processes, next to a Python that does nothing."""
    orch = os.path.join(os.path.dirname(sys.executable), "orch")
    with cluster_of(None) as cluster:
        cluster.ok("up", cluster.spec("--pace", "0.2", checkpoint=False))
        cluster.wait_step(1)
        pairs = [
            (_run_ms([sys.executable, "-c", "pass"], cluster.env), _run_ms([orch, "status"], cluster.env))
            for _ in range(REPEATS)
        ]
    bare = Figure("", "ms", 0.0, tuple(pair[0] for pair in pairs)).measured
    whole = tuple(pair[1] for pair in pairs)
    return [
        Figure("orch status, whole process", "ms", LIMITS["status: whole process"], whole),
        Figure(
            "orch status, 2 x bare Python + 100 ms",
            "ms",
            Limit("status: whole process", 2 * bare + 100),
            whole,
            f"`python -c pass` takes {bare:.0f} ms",
        ),
    ]


def _run_ms(command: list[str], env: Mapping[str, str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, env=env, stdout=subprocess.DEVNULL, check=True)
    return (time.perf_counter() - began) * 1000
