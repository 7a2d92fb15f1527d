"""How long a test waits: its patience is counted in what the machine gives it, and not by the clock.

Where ten processes want each core, a second brings what a tenth of one brings on a quiet machine.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

LEAST = 0.05
"""The smallest share that is believed: what hangs must end some time."""

T = TypeVar("T")


def share() -> float:
    """Return which part of a core each of those who want one has now; 1 where there is one for each."""
    with open("/proc/loadavg") as file:
        return share_of(file.read())


def share_of(loadavg: str) -> float:
    """Return the same of the text of /proc/loadavg: of the last minute, or of this moment where that is worse."""
    minute, _, _, running, *_ = loadavg.split()
    wanted = max(1.0, float(minute), float(running.partition("/")[0]))
    return max(LEAST, min(1.0, (os.cpu_count() or 1) / wanted))


def patient(seconds: float) -> float:
    """Return how long something may take now that takes no more than this on a quiet machine."""
    return seconds / share()


def comes(what: Callable[[], T], seconds: float, every_s: float = 0.03) -> T:
    """Poll until it is true, and return it; what it is when the patience is over."""
    left_s, at = seconds, time.monotonic()
    while not (found := what()) and left_s > 0:
        time.sleep(every_s)
        now = time.monotonic()
        left_s, at = left_s - (now - at) * share(), now
    return found
