"""How much of an undisturbed training is left when a worker is killed every minute, and what each kill costs."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.figure import NotMeasured
from benchmarks.peers.contenders import START_S, WORKERS, Contender
from benchmarks.peers.steps import Step, now, pid_of, read

SETTLE_S = 10.0
"""From the first step to the begin of the window: the first steps trace and warm up."""


_UNDER_WAY_S = 0.5
"""After a kill, a step that was under way may still be told."""


@dataclass(frozen=True, slots=True)
class Goodput:
    """What was measured of one contender."""

    undisturbed: float
    """Steps per second without a kill."""
    share: float
    """Of these, what came about in the window with kills. A step done again counts once."""
    noticed_s: tuple[float, ...]
    """From each kill to the end of the other worker's process; infinite where it lived on until the next kill."""
    first_step_s: tuple[float, ...]
    """From each kill to the first step of a new process, whatever its number."""
    lost_s: tuple[float, ...]
    """From each kill to the first step beyond those that had been done before it."""


def measure(contender: Contender, *, minutes: float, every_s: float) -> Goodput:
    """Train undisturbed for a minute, then with a kill each `every_s` seconds, in turns the first and the second."""
    with tempfile.TemporaryDirectory(prefix="orch-peers-") as directory:
        undisturbed = _undisturbed(contender, Path(directory) / "undisturbed", min(60.0, minutes * 60.0))
        return _disturbed(contender, Path(directory) / "disturbed", undisturbed, minutes * 60.0, every_s)


def _undisturbed(contender: Contender, state: Path, window_s: float) -> float:
    state.mkdir()
    with contender(state):
        _await_first_step(state)
        time.sleep(SETTLE_S)
        before = read(state)[-1]
        time.sleep(window_s)
        after = read(state)[-1]
    return (after.number - before.number) / (after.at_s - before.at_s)


def _disturbed(
    contender: Contender, state: Path, undisturbed: float, window_s: float, every_s: float
) -> Goodput:
    state.mkdir()
    kills: list[float] = []
    noticed: list[float] = []
    with contender(state):
        _await_first_step(state)
        time.sleep(SETTLE_S)
        began, first = now(), max(step.number for step in read(state))
        while (due := began + (len(kills) + 0.5) * every_s) < began + window_s:
            time.sleep(max(0.0, due - now()))
            victim = len(kills) % WORKERS
            kills.append(now())
            noticed.append(_kill(state, victim, patience_s=0.4 * every_s))
        time.sleep(max(0.0, began + window_s - now()))
        steps = read(state)
    counted = max(step.number for step in steps if step.at_s <= began + window_s) - first
    return Goodput(
        undisturbed,
        counted / (undisturbed * window_s),
        tuple(noticed),
        tuple(first_of_new(steps, at) for at in kills),
        tuple(beyond(steps, at) for at in kills),
    )


def _await_first_step(state: Path) -> None:
    deadline = time.monotonic() + START_S
    while not read(state):
        if time.monotonic() > deadline:
            raise NotMeasured(f"no step within {START_S:.0f} s")
        time.sleep(0.1)


def _kill(state: Path, victim: int, patience_s: float) -> float:
    """Kill a worker. Return the seconds until the other one's process has ended too."""
    other = pid_of(state, (victim + 1) % WORKERS)
    with contextlib.suppress(ProcessLookupError):  # a peer's way may have left none at the moment
        os.kill(pid_of(state, victim), signal.SIGKILL)
    killed_at = now()
    while now() < killed_at + patience_s:
        if not _lives(other):
            return now() - killed_at
        time.sleep(0.005)
    return float("inf")


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def first_of_new(steps: Sequence[Step], killed_at_s: float) -> float:
    """Return the seconds from a kill to the first step of a process that had told none before."""
    old = {step.pid for step in steps if step.at_s <= killed_at_s}
    new = [step.at_s for step in steps if step.at_s > killed_at_s and step.pid not in old]
    return new[0] - killed_at_s if new else float("inf")


def beyond(steps: Sequence[Step], killed_at_s: float) -> float:
    """Return the seconds from a kill to the first step of a new process that none had done before."""
    most = max(step.number for step in steps if step.at_s <= killed_at_s + _UNDER_WAY_S)
    later = [step.at_s for step in steps if step.at_s > killed_at_s + _UNDER_WAY_S and step.number > most]
    return later[0] - killed_at_s if later else float("inf")


def middle(samples: Sequence[float]) -> float:
    """Return the median, also of samples of which some are infinite."""
    return median(samples) if samples else float("inf")
