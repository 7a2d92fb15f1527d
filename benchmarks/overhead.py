"""What orch costs a training: the same script by hand and under orch, both with a TF_CONFIG of one worker.

There is one worker, so that Keras 3 runs by hand without a patch. The two train by turns, block by block (see
workdir/steps.py), for steps of some 5, 50 and 500 ms: how large a batch takes as long on this machine is found first,
by hand. While the one by hand trains, all of orch is stopped (SIGSTOP): what it has put off then falls into its own
block. So the figures are an upper bound, more so since the coordinator, which is at home on another machine, competes
for the same cores. The CPU is that of task, shim and agent: of all their threads by the kernel's clocks, and of the
processes that shim and agent have started, once they have ended.

Each sample is of two new processes, so that the interval holds how far processes of the same script differ, too. It is
the ratio of forty pairs of their blocks. Blocks are short, and each way is the first of every other pair, since a
machine gets slower and faster within seconds. A size is measured until the 95 % interval is narrower than ± 1 % and
does not hold the limit, or with so many samples as there is time for; `--long` has patience.

Then the shares: further tasks under orch, each with one thing switched off or on, take turns with a first one. The one
without heartbeats has one a minute, the one without callbacks has no runtime, the one without a log writes to
/dev/null, and the one that is followed has an `orch logs --follow` that reads it. A last one has nothing switched: it
shows how far two processes of the same script differ, and no share below that says anything.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from math import inf, sqrt
from pathlib import Path
from statistics import median, stdev
from typing import Any

from benchmarks import proc
from benchmarks.figure import Figure, NotMeasured, Point
from benchmarks.lab import DEFAULT_TIMING, cluster_of
from benchmarks.length import is_long
from benchmarks.limits import LIMITS
from tests.cluster.cluster import Cluster, wait_until

PAIRS = 40
"""To a sample, of one process each way."""

SAMPLES_MIN = 5
SAMPLES_MAX = 32
"""Steps of 5 ms need the most, since a process has one of two speeds: 16 samples leave ± 1 %, and 32 ± 0.6 %."""

SAMPLES_MAX_LONG = 100
SHARE_SAMPLES = 5
SHARE_SAMPLES_LONG = 30
SHARE_PAIRS = 20
ENOUGH = 1.0
"""Half the width of an interval, in percent, with which a measurement may end."""

T_95 = dict(enumerate((2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13), 5))
"""Student's factors for so many samples; beyond them it is 2."""

FITS = 0.1
"""How far a step may be from the time that it is to take, before a batch is tried that fits better."""

FITTINGS_MAX = 6

TIMEOUT_S = 120.0
WORKDIR = Path(__file__).parent / "workdir"


@dataclass(frozen=True, slots=True)
class Size:
    """Steps of about so many milliseconds, and the block that is timed of them. The batch is the first one tried."""

    about_ms: int
    batch: int
    batches: int
    steps: int
    untimed: int


SIZES = (Size(5, 64, 500, 24, 3), Size(50, 1500, 20, 4, 1), Size(500, 16000, 4, 1, 0))
"""A block takes between an eighth and half of a second."""

SHARES: dict[str, dict[str, Any]] = {
    "heartbeats": {"timing": {"heartbeat": "60s", "unreachable_after": "200s", "lost_after": "300s"}},
    "progress callbacks": {"runtime": False},
    "log reading": {},
    "follow": {},
    "nothing": {},
}
"""What is switched off in the specs of the tasks that the shares are measured by."""


@dataclass(frozen=True, slots=True)
class Block:
    """What a block of steps took."""

    wall_s: float
    cpu_s: float


class Trainer:
    """A process that trains when it is asked to, and what of orch is there for it."""

    def __init__(self, directory: Path, name: str) -> None:
        self.name = name
        self.fifos = [str(directory / f"{name}.{end}") for end in ("orders", "answers")]
        for fifo in self.fifos:
            os.mkfifo(fifo)
        self._orders, self._answers = (os.open(fifo, os.O_RDWR) for fifo in self.fifos)
        self._rest = b""
        self.beside: list[int] = []
        """Shim and agent."""

    def close(self) -> None:
        os.close(self._orders)
        os.close(self._answers)

    def order(self, **order: int) -> None:
        os.write(self._orders, json.dumps(order).encode() + b"\n")

    def block(self, size: Size) -> Block:
        """Have a block trained, and return what it took, with the CPU of what is beside it."""
        before_s = sum(map(proc.family_cpu_s, self.beside))
        self.order(steps=size.steps, untimed=size.untimed)
        answer = self._answer()
        beside_s = sum(map(proc.family_cpu_s, self.beside)) - before_s
        timed = size.steps / (size.steps + size.untimed)
        return Block(answer["wall_s"], answer["cpu_s"] + beside_s * timed)

    def _answer(self) -> dict[str, float]:
        deadline = time.monotonic() + TIMEOUT_S
        while b"\n" not in self._rest:
            if not select.select([self._answers], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise NotMeasured(f"{self.name} trained no block in {TIMEOUT_S:.0f} s")
            self._rest += os.read(self._answers, 65536)
        line, _, self._rest = self._rest.partition(b"\n")
        return dict(json.loads(line))


def measure() -> list[Figure]:
    """Measure the overhead, and the share of each part, in percent of a step."""
    with cluster_of(None) as cluster:
        sizes = _fitted(cluster)
        return _overhead(cluster, sizes) + _shares(cluster, sizes[0])


def _fitted(cluster: Cluster) -> list[Size]:
    """Return the sizes with batches whose steps take about as long as they are to on this machine, by hand."""
    with _by_hand(cluster, "fitting") as trainer:
        return [_fitted_size(trainer, size) for size in SIZES]


def _fitted_size(trainer: Trainer, size: Size) -> Size:
    for _ in range(FITTINGS_MAX):
        _warm_up(trainer, size)
        step_ms = median(trainer.block(size).wall_s for _ in range(5)) / size.steps * 1000
        if abs(step_ms / size.about_ms - 1) < FITS:
            break
        # A step's time is not in proportion to its batch; each try comes nearer.
        size = replace(size, batch=max(1, round(size.batch * size.about_ms / step_ms)))
    return size


def _warm_up(trainer: Trainer, size: Size) -> None:
    """Let the first block be traced, and one more be trained."""
    trainer.order(batch=size.batch, batches=size.batches)
    trainer.block(size)
    trainer.block(size)


@dataclass(frozen=True, slots=True)
class Sample:
    """What orch costs one process, in percent of one by hand."""

    wall: float
    cpu: float
    step_ms: float
    """By hand."""


def _overhead(cluster: Cluster, sizes: Sequence[Size]) -> list[Figure]:
    """Compare new processes time after time, until each size is known well enough."""
    samples: dict[Size, list[Sample]] = {size: [] for size in sizes}
    for number in range(SAMPLES_MAX_LONG if is_long() else SAMPLES_MAX):
        unknown = [size for size, found in samples.items() if not _are_known(found)]
        if not unknown:
            break
        with _by_hand(cluster, f"hand{number}") as hand, _under_orch(cluster, f"t{number}") as orch:
            held = [cluster.coordinator_pid, *orch.beside]
            for size in unknown:
                samples[size].append(_sample(hand, orch, held, size))
    return [figure for size, found in samples.items() for figure in _figures(size, found)]


def _sample(hand: Trainer, orch: Trainer, held: Sequence[int], size: Size) -> Sample:
    for trainer in (hand, orch):
        _warm_up(trainer, size)
    pairs = [_pair(hand, orch, held, size, hand_first=number % 2 == 0) for number in range(PAIRS)]
    step_ms = median(by_hand.wall_s for by_hand, _ in pairs) / size.steps * 1000
    return Sample(_over(pairs, "wall_s"), _over(pairs, "cpu_s"), step_ms)


def _are_known(samples: Sequence[Sample]) -> bool:
    return _is_known([sample.wall for sample in samples], LIMITS["overhead: wall"]) and _is_known(
        [sample.cpu for sample in samples], LIMITS["overhead: CPU"]
    )


def _figures(size: Size, samples: Sequence[Sample]) -> list[Figure]:
    of, pairs = f"steps of {size.about_ms} ms", len(samples) * PAIRS
    note = f"{pairs} pairs of blocks; {median(sample.step_ms for sample in samples):.1f} ms a step by hand"
    wall, cpu = tuple(sample.wall for sample in samples), tuple(sample.cpu for sample in samples)
    return [
        _figure(f"wall time under orch, over by hand, {of}", LIMITS["overhead: wall"], wall, note),
        _figure(f"CPU under orch, over by hand, {of}", LIMITS["overhead: CPU"], cpu, note),
    ]


def _pair(
    hand: Trainer, orch: Trainer, held: Sequence[int], size: Size, *, hand_first: bool
) -> tuple[Block, Block]:
    """Train a block by hand, with all of orch stopped, and one under orch. Return both in this order."""
    under_orch = None if hand_first else orch.block(size)
    with _stopped(held):
        by_hand = hand.block(size)
    return by_hand, under_orch or orch.block(size)


def _shares(cluster: Cluster, size: Size) -> list[Figure]:
    """Compare a task under orch with those that have one thing switched off, or on."""
    with ExitStack() as stack:
        orch = stack.enter_context(_under_orch(cluster, "t"))
        others = {
            name: stack.enter_context(_under_orch(cluster, name.split()[0], **spec))
            for name, spec in SHARES.items()
        }
        stack.enter_context(_follower(cluster, others["follow"]))
        for trainer in (orch, *others.values()):
            _warm_up(trainer, size)
        samples = [
            _share(orch, others, size) for _ in range(SHARE_SAMPLES_LONG if is_long() else SHARE_SAMPLES)
        ]
    plot = f"share of the CPU of a step, steps of {size.about_ms} ms"
    note = f"{len(samples) * SHARE_PAIRS} pairs of blocks"
    return [
        _figure(
            f"of it, by CPU: {name}", inf, tuple(sample[name] for sample in samples), note, Point(plot, name)
        )
        for name in others
    ]


def _share(orch: Trainer, others: dict[str, Trainer], size: Size) -> dict[str, float]:
    pairs: dict[str, list[tuple[Block, Block]]] = {name: [] for name in others}
    for _ in range(SHARE_PAIRS):
        whole = orch.block(size)
        for name, trainer in others.items():
            other = trainer.block(size)
            pairs[name].append((whole, other) if name == "follow" else (other, whole))
    return {name: _over(pairs[name], "cpu_s") for name in others}


def _over(pairs: Sequence[tuple[Block, Block]], what: str) -> float:
    """Return by how many percent the second ones took more than the first ones."""
    first, second = (float(sum(getattr(pair[index], what) for pair in pairs)) for index in (0, 1))
    return (second / first - 1) * 100


def _is_known(samples: Sequence[float], limit: float) -> bool:
    """Whether the interval is of enough samples, narrow, and wholly on one side of the limit."""
    if len(samples) < SAMPLES_MIN:
        return False
    width = _half_width(samples)
    return width < ENOUGH and abs(median(samples) - limit) > width


def _half_width(samples: Sequence[float]) -> float:
    """Return half the width of the 95 % interval of their mean."""
    return T_95.get(len(samples), 2.0) * stdev(samples) / sqrt(len(samples))


def _figure(
    claim: str, limit: float, samples: Sequence[float], note: str, point: Point | None = None
) -> Figure:
    width = _half_width(samples)
    return Figure(claim, "%", limit, tuple(samples), f"± {width:.2f} (95 %); {note}", width, point)


# --- who trains ------------------------------------------------------------------------------------------


@contextmanager
def _by_hand(cluster: Cluster, name: str) -> Iterator[Trainer]:
    trainer = Trainer(cluster.directory, name)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = {"cluster": {"worker": [f"127.0.0.1:{port}"]}, "task": {"type": "worker", "index": 0}}
    env = {
        **os.environ,
        "TF_CONFIG": json.dumps(config),
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "CUDA_VISIBLE_DEVICES": "",
    }
    with open(cluster.directory / f"{name}.log", "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "steps.py", *trainer.fifos],
            cwd=WORKDIR,
            env=env,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield trainer
    finally:
        process.kill()
        process.wait()
        trainer.close()


@contextmanager
def _under_orch(cluster: Cluster, name: str, **run: Any) -> Iterator[Trainer]:
    trainer = Trainer(cluster.directory, name)
    timing = {**DEFAULT_TIMING, "stall_after": "1h", **run.pop("timing", {})}
    spec = cluster.spec(
        *trainer.fifos,
        *(["--silent"] if name == "log" else []),
        name=name,
        tasks=1,
        script="steps.py",
        workdir=str(WORKDIR),
        checkpoint=False,
        env={"TF_CPP_MIN_LOG_LEVEL": "2"},
        timing=timing,
        **run,
    )
    try:
        cluster.ok("up", spec, timeout=TIMEOUT_S)
        wait_until(lambda: _is_running(cluster, name), f"{name} is RUNNING", timeout=TIMEOUT_S)
        shim = proc.parent(int(cluster.run(name)["tasks"][0]["pid"]))
        trainer.beside = [shim, *proc.children(cluster.coordinator_pid)]
        yield trainer
        cluster.ok("kill", name, timeout=TIMEOUT_S)
    finally:
        trainer.close()


def _is_running(cluster: Cluster, name: str) -> bool:
    run = cluster.shown(name)
    return run is not None and run["phase"] == "RUNNING"


@contextmanager
def _follower(cluster: Cluster, followed: Trainer) -> Iterator[None]:
    command = [sys.executable, "-m", "orchestrator.cli.main", "logs", followed.name, "--follow"]
    nowhere = subprocess.DEVNULL
    process = subprocess.Popen(command, env=cluster.env, stdout=nowhere, stderr=nowhere)
    try:
        yield
    finally:
        process.kill()
        process.wait()


@contextmanager
def _stopped(pids: Sequence[int]) -> Iterator[None]:
    """Stop processes for as long as a block takes. That is shorter than any silence that anybody minds."""
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
