"""What the training scripts of the comparison have told: see workdir/telling.py."""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple


class Step(NamedTuple):
    """A step that the first worker has done."""

    at_s: float
    """CLOCK_BOOTTIME, in seconds."""
    number: int
    pid: int


def now() -> float:
    """Return the time of the steps' clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def read(state: Path) -> list[Step]:
    """Return all steps so far, in the order in which they were done."""
    path = state / "steps"
    if not path.exists():
        return []
    fields = (line.split() for line in path.read_text().splitlines())
    return [Step(float(at), int(number), int(pid)) for at, number, pid in fields]


def pid_of(state: Path, rank: int) -> int:
    """Return the pid that the worker of this rank has told last."""
    return int((state / f"pid.{rank}").read_text())
