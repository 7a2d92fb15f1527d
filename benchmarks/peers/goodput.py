"""How much of an undisturbed training is left when a worker is killed every minute, and what each kill costs.

Then one worker is frozen, and the host of one is cut off: how long until the other one's process has ended.
"""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from benchmarks.figure import NotMeasured
from benchmarks.peers.contenders import START_S, Contender
from benchmarks.peers.place import WORKERS, Place, place_of
from benchmarks.peers.steps import Step, now, pid_of, read

SETTLE_S = 5.0
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
    frozen_s: float | None = None
    """From the freezing of one worker to the end of the other's process; infinite where it was not so in time."""
    cut_s: float | None = None
    """The same for a host that is cut off the network; None where no host can be."""


@dataclass(frozen=True, slots=True)
class Times:
    """How long a contender is measured, in seconds."""

    window_s: float
    """With kills."""
    every_s: float
    """From kill to kill."""
    patience_s: float
    """For what is frozen or cut off to be noticed."""
    save_s: float = 0.0
    """From one save to the next; 0: every 50 steps."""

    @property
    def undisturbed_s(self) -> float:
        """How long it trains without a kill first."""
        return min(60.0, max(15.0, self.window_s / 6))


def measure(contender: Contender, times: Times) -> Goodput:
    """Train undisturbed, then with kills of the first and the second worker in turns.

    Where it saves often, one is frozen then, and one cut off.
    """
    with tempfile.TemporaryDirectory(prefix="orch-peers-") as directory, place_of() as place:
        state = Path(directory)
        with contender(state, place):
            _await_first_step(state)
            time.sleep(SETTLE_S)
            before = read(state)[-1]
            time.sleep(times.undisturbed_s)
            after = read(state)[-1]
            undisturbed = (after.number - before.number) / (after.at_s - before.at_s)
            found = _disturbed(state, undisturbed, times)
            if times.save_s:  # how often it saves changes nothing of how soon a worker is missed
                return found
            return replace(found, frozen_s=_freeze(state, times), cut_s=_cut(state, place, times))


def _disturbed(state: Path, undisturbed: float, times: Times) -> Goodput:
    kills: list[float] = []
    noticed: list[float] = []
    window_s, every_s = times.window_s, times.every_s
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


def _freeze(state: Path, times: Times) -> float | None:
    """Freeze the second worker, and thaw it afterwards. None where nothing trains."""
    if not _trains(state, times):
        return None
    frozen, other = pid_of(state, 1), pid_of(state, 0)
    os.kill(frozen, signal.SIGSTOP)
    try:
        return _ended_s(other, times.patience_s)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(frozen, signal.SIGCONT)


def _cut(state: Path, place: Place, times: Times) -> float | None:
    """Cut the second worker's host off the network. None where that cannot be, or nothing trains."""
    if place.lab is None or not _trains(state, times):
        return None
    other = pid_of(state, 0)
    place.lab.host(1).cut()
    try:
        return _ended_s(other, times.patience_s)
    finally:
        place.lab.host(1).heal()


def _trains(state: Path, times: Times) -> bool:
    """Wait until steps are done again. Return whether they are."""
    deadline, before = now() + times.patience_s, now()
    while now() < deadline:
        if sum(step.at_s > before for step in read(state)[-5:]) >= 5:
            return True
        time.sleep(0.2)
    return False


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
    return _ended_s(other, patience_s)


def _ended_s(pid: int, patience_s: float) -> float:
    """Return after how many seconds a process has ended; infinite where it still lives then."""
    began = now()
    while now() < began + patience_s:
        if not _lives(pid):
            return now() - began
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
