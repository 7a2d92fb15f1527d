"""The time from kill -9 of a task to the first new step, compared with a start of the same processes by hand.

Real TensorFlow with two, three and eight workers goes through import, rendezvous, restore, tracing and the first step.
The two ways take turns in one run, each while the other's processes only sleep. The claim about a cold start is how
much longer it takes under orch, where the death must also be noticed, the peers killed, and the newest checkpoint
verified and copied. With a standby the import is done before the kill, and the claims are the time itself, and its
share of the cold one's. Every other time the newest checkpoint was verified before; else it was saved just then.

Where the time went is told by the script, of the worker that was last: until the script began (by hand that is Python;
under orch detection, end, start and, where there is no standby, import), and from each of its marks to the next. The
plots show the start in the middle of each way.
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
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.figure import Figure, NotMeasured, Point
from benchmarks.lab import DEFAULT_TIMING, cluster_of
from benchmarks.length import is_long
from benchmarks.limits import LIMITS
from tests.cluster.cluster import Cluster, wait_until

REPEATS = 4
MORE_WORKERS = {3: 1, 8: 1}
"""How many workers, and how often."""

MORE_WORKERS_LONG = {3: 4, 8: 3}
TIMEOUT_S = 180.0
FIRST_STEP = "kill -9 to the first new step"
MARKS = ("began", "import", "rendezvous", "restore", "tracing", "first step")
SCRIPT: dict[str, Any] = {
    "script": "comeback.py",
    "workdir": str(Path(__file__).parent / "workdir"),
    "env": {"TF_CPP_MIN_LOG_LEVEL": "2"},
}
"""What a spec says of the script that is started, but for its arguments."""


@dataclass(frozen=True, slots=True)
class Start:
    """One start: the seconds to the last first step, and where they went."""

    total_s: float
    parts: dict[str, float]

    def sentence(self) -> str:
        return ", ".join(f"{name} {seconds:.2f}" for name, seconds in self.parts.items() if seconds >= 0.01)


@dataclass(slots=True)
class Starts:
    """The starts of one number of workers."""

    by_hand: list[Start] = field(default_factory=list)
    cold: list[Start] = field(default_factory=list)
    cold_hand: list[Start] = field(default_factory=list)
    """The start by hand beside each of them."""
    warm: list[Start] = field(default_factory=list)
    warm_hand: list[Start] = field(default_factory=list)


def measure() -> list[Figure]:
    """Measure how many milliseconds longer than by hand a cold start takes, and how long one with a standby."""
    two = Starts()
    take_turns(two, workers=2, repeats=REPEATS, warm=False)
    take_turns(two, workers=2, repeats=REPEATS, warm=True)
    figures = _figures(2, two)
    for workers, repeats in (MORE_WORKERS_LONG if is_long() else MORE_WORKERS).items():
        more = Starts()
        for warm in (False, True):
            take_turns(more, workers=workers, repeats=repeats, warm=warm)
        figures += _figures(workers, more)
    return figures


def _figures(workers: int, starts: Starts) -> list[Figure]:
    what = FIRST_STEP if workers == 2 else f"{FIRST_STEP}, {workers} workers"
    plot = f"kill -9 of a worker to the first new step, {workers} workers"
    more = [(mine.total_s - theirs.total_s) * 1000 for mine, theirs in _beside(starts.cold, starts.cold_hand)]
    # Each is put in proportion to the start by hand beside it: the machine's load differs from one minute to the next.
    cold_share = median(
        mine.total_s / theirs.total_s for mine, theirs in _beside(starts.cold, starts.cold_hand)
    )
    shares = [
        mine.total_s / theirs.total_s / cold_share for mine, theirs in _beside(starts.warm, starts.warm_hand)
    ]
    warm_s = LIMITS["comeback: with a standby"] if workers == 2 else inf
    share_limit = LIMITS["comeback: with a standby, of that without"] if workers == 2 else inf
    over = LIMITS["comeback: over by hand"]
    return [
        _figure(f"{what}, a bare start by hand", inf, starts.by_hand, Point(plot, "by hand")),
        _figure(f"{what}, without a standby", inf, starts.cold, Point(plot, "orch, no standby")),
        Figure(f"{what}, over a bare start by hand", "ms", over, tuple(more)),
        _figure(f"{what}, with a standby", warm_s, starts.warm, Point(plot, "orch, standby")),
        Figure(
            f"{what}, with a standby, of that without",
            "x",
            share_limit,
            tuple(shares),
            "each in proportion to the start by hand beside it",
        ),
        *(_left(starts.warm) if workers == 2 else []),
    ]


def _figure(claim: str, limit: float, starts: list[Start], point: Point) -> Figure:
    """Return the figure of some starts, and where the one in the middle went."""
    middle = sorted(starts, key=lambda start: start.total_s)[len(starts) // 2]
    seconds = tuple(start.total_s for start in starts)
    return Figure(claim, "s", limit, seconds, middle.sentence(), point=point, parts=middle.parts)


def _beside(mine: list[Start], theirs: list[Start]) -> list[tuple[Start, Start]]:
    return list(zip(mine, theirs, strict=True))


def _left(warm: list[Start]) -> list[Figure]:
    """Return what is left with a standby, by name."""
    plot = "where the time goes with a standby, two workers"
    return [
        Figure(
            f"of it: {name}", "s", inf, tuple(start.parts[name] for start in warm), point=Point(plot, name)
        )
        for name in warm[0].parts
    ]


def take_turns(starts: Starts, *, workers: int, repeats: int, warm: bool) -> None:
    """Start by hand and under orch by turns, and add what they took."""
    with cluster_of(None) as cluster:
        times = cluster.directory / "times"
        times.mkdir()
        spec = cluster.spec(
            str(cluster.directory / "by-hand"),
            str(times / "orch"),
            tasks=workers,
            **SCRIPT,
            # Ten heartbeats after the first step a standby is started.
            timing={**DEFAULT_TIMING, "heartbeat": "0.5s" if warm else "2s", "stall_after": "1h"},
            restart={"standby": "on" if warm else "off"},
        )
        cluster.ok("up", spec, timeout=TIMEOUT_S)
        for repeat in range(repeats):
            before = _ready_to_kill(cluster, times / "orch", workers, number=repeat + 1, warm=warm)
            by_hand = _by_hand(cluster, before, times / f"hand-{repeat}", workers)
            if repeat % 2 == 0:  # its newest checkpoint is verified; else another is saved now
                _save_again(times / "orch", workers, repeat + 1)
            under_orch = _under_orch(before, times / "orch", victim=repeat % workers, workers=workers)
            starts.by_hand.append(by_hand)
            (starts.warm if warm else starts.cold).append(under_orch)
            (starts.warm_hand if warm else starts.cold_hand).append(by_hand)


def _ready_to_kill(cluster: Cluster, times: Path, workers: int, *, number: int, warm: bool) -> dict[str, Any]:
    """Wait until what is to be killed has saved, and for its standby; of each other one for the verification too."""
    wait_until(lambda: all(p.exists() for p in saved(times, workers)), "the first save", timeout=TIMEOUT_S)
    if number % 2 == 0:
        cluster.wait(_has_verified, timeout=TIMEOUT_S)
    if warm:
        return cluster.wait(lambda run: run["standby"]["state"] == "ready", timeout=TIMEOUT_S)
    return cluster.wait(lambda run: run["phase"] == "RUNNING", timeout=TIMEOUT_S)


def _has_verified(run: dict[str, Any]) -> bool:
    """Return whether this generation's last checkpoint is verified, so that a restart need not wait for it."""
    known = run["checkpoint"]
    mine = known is not None and f"gen-{run['generation']:06d}" in known["path"]
    return mine and run["phase"] == "RUNNING" and known["global_step"] == run["global_step"]


def saved(times: Path, workers: int) -> list[Path]:
    """Return the files that say what each worker has saved."""
    return [Path(f"{times}.{index}.saved") for index in range(workers)]


def _save_again(times: Path, workers: int, number: int) -> None:
    """Have all train some more steps and save: that checkpoint nobody has read yet."""
    Path(f"{times}.more.new").write_text(str(number))
    os.replace(f"{times}.more.new", f"{times}.more")
    wait_until(
        lambda: all(path.read_text() == str(number) for path in saved(times, workers)),
        "another save",
        timeout=TIMEOUT_S,
    )


def _under_orch(run: dict[str, Any], times: Path, *, victim: int, workers: int) -> Start:
    """Kill a worker, and return the start that follows."""
    forget_times(times, workers)
    killed_at = time.clock_gettime(time.CLOCK_BOOTTIME)
    os.kill(int(run["tasks"][victim]["pid"]), signal.SIGKILL)
    return first_steps(times, workers, killed_at)


def _by_hand(cluster: Cluster, run: dict[str, Any], times: Path, workers: int) -> Start:
    """Start the processes with TF_CONFIG and checkpoint in place, and return how long that took."""
    mine = cluster.directory / "by-hand"
    shutil.rmtree(mine, ignore_errors=True)
    saved = cluster.directory / "ckpt" / f"gen-{run['generation']:06d}"
    for index in range(workers):
        shutil.copytree(saved, mine / str(index))
    addresses = [f"127.0.0.1:{_free_port()}" for _ in range(workers)]
    began_at = time.clock_gettime(time.CLOCK_BOOTTIME)
    started = [_start(mine, times, addresses, index) for index in range(workers)]
    try:
        return first_steps(times, workers, began_at)
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
    return subprocess.Popen(command, cwd=SCRIPT["workdir"], env=env, stdout=nowhere, stderr=nowhere)


def forget_times(times: Path, workers: int) -> None:
    """Remove what the script has told, before it is started anew."""
    for path in (*_told(times, workers), *saved(times, workers), Path(f"{times}.more")):
        path.unlink(missing_ok=True)


def first_steps(times: Path, workers: int, since: float) -> Start:
    """Wait until each worker has done a step. Return what the last of them took since then (CLOCK_BOOTTIME)."""
    paths = _told(times, workers)
    deadline = time.monotonic() + TIMEOUT_S
    while not all(map(Path.exists, paths)):
        if time.monotonic() > deadline:
            raise NotMeasured(f"no first step within {TIMEOUT_S:.0f} s")
        time.sleep(0.02)
    last = max((json.loads(path.read_text()) for path in paths), key=lambda told: float(told["first step"]))
    parts = {"until the script began": last["began"] - since}
    parts |= {name: last[name] - last[before] for before, name in pairwise(MARKS)}
    return Start(last["first step"] - since, parts)


def _told(times: Path, workers: int) -> list[Path]:
    return [Path(f"{times}.{index}") for index in range(workers)]


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
