"""The time from kill -9 of a task to the first new step, compared with a start of the same processes by hand.

Real TensorFlow with two workers goes through import, rendezvous, restore and the first step. The two ways take turns
in one run, each while the other's processes only sleep. The claim about a cold start is how much longer it takes under
orch, where the death must also be noticed, the peer killed, and the newest checkpoint verified and copied. With a
standby the import is done before the kill, and the claims are the time itself, and its share of the cold one's.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from math import inf
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.figure import Figure, NotMeasured, Point
from benchmarks.lab import DEFAULT_TIMING, cluster_of
from benchmarks.limits import LIMITS
from tests.cluster.cluster import Cluster

REPEATS = 5
TIMEOUT_S = 120.0
TASKS = 2
WORKDIR = Path(__file__).parent / "workdir"


def measure() -> list[Figure]:
    """Measure how many milliseconds longer than by hand a cold start takes, and how long one with a standby."""
    cold, hand = take_turns()
    warm, hand_again = take_turns(standby="on")
    more = tuple((mine - theirs) * 1000 for mine, theirs in zip(cold, hand, strict=True))
    # Each is put in proportion to the start by hand beside it: the machine's load differs from one minute to the next.
    cold_share = median(mine / theirs for mine, theirs in zip(cold, hand, strict=True))
    shares = tuple(mine / theirs / cold_share for mine, theirs in zip(warm, hand_again, strict=True))
    beside = f"{median(hand_again):.2f} s by hand, in turns"
    first_step = "kill -9 to the first new step"
    plot = "kill -9 of a worker to the first new step, two workers"
    return [
        Figure(f"{first_step}, a bare start by hand", "s", inf, tuple(hand), point=Point(plot, "by hand")),
        Figure(
            f"{first_step}, without a standby", "s", inf, tuple(cold), point=Point(plot, "orch, no standby")
        ),
        Figure(f"{first_step}, over a bare start by hand", "ms", LIMITS["comeback: over by hand"], more),
        Figure(
            f"{first_step}, with a standby",
            "s",
            LIMITS["comeback: with a standby"],
            tuple(warm),
            beside,
            point=Point(plot, "orch, standby"),
        ),
        Figure(
            f"{first_step}, with a standby, of that without",
            "x",
            LIMITS["comeback: with a standby, of that without"],
            shares,
            "each in proportion to the start by hand beside it",
        ),
    ]


def take_turns(standby: str = "off") -> tuple[list[float], list[float]]:
    """Return the seconds to the first steps, under orch and by hand."""
    with cluster_of(None) as cluster:
        times = cluster.directory / "times"
        times.mkdir()
        spec = cluster.spec(
            str(cluster.directory / "by-hand"),
            str(times / "orch"),
            tasks=TASKS,
            script="comeback.py",
            workdir=str(WORKDIR),
            env={"TF_CPP_MIN_LOG_LEVEL": "2"},
            timing={**DEFAULT_TIMING, "stall_after": "1h"},
            restart={"standby": standby},
        )
        cluster.ok("up", spec)
        orch, hand = [], []
        for repeat in range(REPEATS):
            before = cluster.wait(_has_saved, timeout=TIMEOUT_S)
            if standby != "off":
                before = cluster.wait(lambda run: run["standby"]["state"] == "ready", timeout=TIMEOUT_S)
            hand.append(_by_hand(cluster, before, times / f"hand-{repeat}"))
            orch.append(_under_orch(before, times / "orch", repeat % TASKS))
    return orch, hand


def _has_saved(run: dict[str, Any]) -> bool:
    """Return whether this generation's last checkpoint is verified, so that a restart need not wait for it."""
    known = run["checkpoint"]
    mine = known is not None and f"gen-{run['generation']:06d}" in known["path"]
    return mine and run["phase"] == "RUNNING" and known["global_step"] == run["global_step"]


def _under_orch(run: dict[str, Any], times: Path, victim: int) -> float:
    """Return the seconds from the kill to the later of the two first steps."""
    paths = [Path(f"{times}.{index}") for index in range(TASKS)]
    for path in paths:
        path.unlink()
    killed_at = time.clock_gettime(time.CLOCK_BOOTTIME)
    os.kill(int(run["tasks"][victim]["pid"]), signal.SIGKILL)
    return _first_steps(paths) - killed_at


def _by_hand(cluster: Cluster, run: dict[str, Any], times: Path) -> float:
    """Start two processes with TF_CONFIG and checkpoint in place, and return the seconds to their first steps."""
    mine = cluster.directory / "by-hand"
    shutil.rmtree(mine, ignore_errors=True)
    for index in range(TASKS):
        shutil.copytree(Path(run["checkpoint"]["path"]).parent, mine / str(index))
    addresses = [f"127.0.0.1:{_free_port()}" for _ in range(TASKS)]
    began_at = time.clock_gettime(time.CLOCK_BOOTTIME)
    started = [_start(mine, times, addresses, index) for index in range(TASKS)]
    try:
        return _first_steps([Path(f"{times}.{index}") for index in range(TASKS)]) - began_at
    finally:
        for process in started:
            process.kill()
            process.wait()


def _start(checkpoints: Path, times: Path, addresses: list[str], index: int) -> subprocess.Popen[bytes]:
    config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
    env = {
        **os.environ,
        "TF_CONFIG": json.dumps(config),
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "CUDA_VISIBLE_DEVICES": "",
    }
    command = [sys.executable, "comeback.py", str(checkpoints), str(times)]
    nowhere = subprocess.DEVNULL
    return subprocess.Popen(command, cwd=WORKDIR, env=env, stdout=nowhere, stderr=nowhere)


def _first_steps(paths: list[Path]) -> float:
    deadline = time.monotonic() + TIMEOUT_S
    while not all(map(Path.exists, paths)):
        if time.monotonic() > deadline:
            raise NotMeasured(f"no first step within {TIMEOUT_S:.0f} s")
        time.sleep(0.02)
    return max(float(json.loads(path.read_text())) for path in paths)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
