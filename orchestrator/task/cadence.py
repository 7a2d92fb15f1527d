"""Decides when to save, counted in steps, so that the processes that train together save together.

Clocks differ, and a save that one process begins alone would wait for the others for ever. But all processes count the
same steps. So at an agreed step the chief says how many steps there are until the next save. The first save comes after
a few steps and shows what a save costs; from then on the interval is the one that costs least (`interval`).
"""

from __future__ import annotations

import math
import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from orchestrator.protocol.reports import Saving


FIRST_STEPS = 10
"""After so many the pace is known well enough. The first is left out of it: it is traced."""

_NEWEST_WEIGHT = 0.5
"""The weight of the newest save in the cost. The first save costs more than those that follow."""


class Wish:
    """How often the spec wants saves: every `steps`, every `seconds`, or, with neither, as often as costs least."""

    def __init__(
        self, steps: int | None = None, seconds: float | None = None, failure_s: float | None = None
    ) -> None:
        self.steps = steps
        self.seconds = seconds
        self.failure_s = failure_s or FAILURE_S

    @staticmethod
    def read(options: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> Wish:
        """Return the wish in ORCH_RUNTIME, and how often the head node expects a failure."""
        steps, seconds = options.get("save_every_steps"), options.get("save_every_s")
        try:
            failure_s = float(environment.get("ORCH_FAILURE_EVERY_S", ""))
        except ValueError:
            failure_s = 0.0
        return Wish(
            int(steps) if steps else None,
            float(seconds) if seconds else None,
            failure_s if 0.0 < failure_s < float("inf") else None,
        )


class Cadence:
    """Counts the steps of one process. All that train together must call it alike."""

    def __init__(
        self,
        wish: Wish,
        agree: Callable[[float], float] = lambda number: number,
        tell: Callable[[Saving], None] = lambda _saving: None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args:
        agree: returns the chief's number in every process; all call it at the same step.
        tell: takes what was decided, for people.
        """
        self._wish = wish
        self._agree = agree
        self._tell = tell
        self._now = now
        self._left = wish.steps or FIRST_STEPS
        self._mark: float | None = None
        self._since_mark = 0
        self._cost_s: float | None = None
        self._spent_s = 0.0
        self._saved_step: int | None = None
        self._written_s: float | None = None
        self._is_paced = wish.seconds is None

    def step(self, steps: int = 1) -> bool:
        """Count steps. Return whether to save now; if so, the caller must call `saved` after the save."""
        if self._mark is None:
            self._mark = self._now()
        else:
            self._since_mark += steps
        self._left -= steps
        if self._left > 0:
            return False
        if not self._is_paced:
            self._plan()
            return False
        return True

    def saved(self, cost_s: float, written_s: float = 0.0, step: int | None = None) -> None:
        """Measure a save that was made, and agree on the next one.

        Args:
            cost_s: how long it held the training up.
            written_s: how long the save before was written beside the training.
            step: the step of the training, where it is known. It is shown until the save is verified.
        """
        self._saved_step = step
        self._cost_s = _averaged(self._cost_s, cost_s)
        self._spent_s += max(0.0, cost_s)
        if written_s:
            self._written_s = _averaged(self._written_s, written_s)
        self._plan(paused_s=cost_s)

    @property
    def step_s(self) -> float:
        """Return how long a step takes, since the last save."""
        if self._mark is None or not self._since_mark:
            return 0.0
        return max(0.0, self._now() - self._mark) / self._since_mark

    def _plan(self, paused_s: float = 0.0) -> None:
        chosen = self._interval()
        if self._wish.steps is not None:
            self._left = self._wish.steps
            every_s = None
        else:
            counted, mark = self._since_mark, self._mark
            spent_s = self._now() - mark - paused_s if mark is not None else 0.0
            step_s = max(spent_s, 1e-6) / counted if counted else 0.0
            self._left = max(
                1, round(self._agree(max(1.0, chosen.seconds / step_s if step_s else FIRST_STEPS)))
            )
            every_s = chosen.seconds
        self._is_paced = True
        self._mark, self._since_mark = self._now(), 0
        saving: Saving = {"every_steps": self._left, "failure_s": self._wish.failure_s, "why": chosen.why}
        if every_s is not None:
            saving["every_s"] = round(every_s, 3)
        if self._cost_s is not None:
            saving["cost_s"] = round(self._cost_s, 4)
            saving["spent_s"] = round(self._spent_s, 4)
        if self._saved_step is not None:
            saving["saved_step"] = self._saved_step
        self._tell(saving)

    def _interval(self) -> Interval:
        wish = self._wish
        if wish.steps is not None or wish.seconds is not None:
            return Interval(wish.seconds or 0.0, "spec")
        return interval(self._cost_s or 0.0, wish.failure_s, self._written_s or 0.0)


def _averaged(before: float | None, newest: float) -> float:
    newest = max(0.0, newest)
    return newest if before is None else before + _NEWEST_WEIGHT * (newest - before)


SHARE_MAX = 0.01
"""The largest share of the time for which saving may hold the training up."""

WRITING_SHARE_MAX = 0.1
"""The same for saves that are written in the background, which use the disk and a core."""

SHORTEST_S = 1.0
"""A shorter interval gains nothing, since a restart takes longer than that."""

LONGEST_S = 1800.0
"""The most training that a failure may cost, whatever the formula says: the rate of failures in it is a guess."""

FAILURE_S = 84 * 3600.0
"""The mean time between failures that is assumed if none is told: that of two hosts by the prior of
`core/saving.py`."""


class Interval:
    """How long to train between two saves, and which rule decided that."""

    def __init__(self, seconds: float, why: str) -> None:
        self.seconds = seconds
        self.why = why
        """`least`: the formula. Else the limit that was met: `share`, `writing`, `shortest`, `longest`."""


def interval(cost_s: float, failure_s: float, written_s: float = 0.0) -> Interval:
    """Return the interval at which saving costs least. It runs inside the task, which measures the cost.

    A run that saves seldom trains many steps again after a failure, and one that saves often loses time to saving. If a
    save holds the training up for `cost_s`, and a failure comes every `failure_s`, the sum of both costs is least at
    the interval sqrt(2 * cost_s * failure_s) (Young, 1974).

    Args:
        cost_s: how long a save holds the training up.
        failure_s: the mean time between failures.
        written_s: how long a save is written beside the training.

    >>> found = interval(0.5, 7 * 86400)
    >>> round(found.seconds), found.why
    (778, 'least')
    >>> found = interval(0.5, 60)
    >>> found.seconds, found.why
    (50.0, 'share')
    """
    chosen = Interval(math.sqrt(2 * max(cost_s, 0.0) * max(failure_s, 0.0)), "least")
    if chosen.seconds > LONGEST_S:
        chosen = Interval(LONGEST_S, "longest")
    least = (
        Interval(SHORTEST_S, "shortest"),
        Interval(written_s / WRITING_SHARE_MAX, "writing"),
        Interval(cost_s / SHARE_MAX, "share"),
    )
    bound = max(least, key=lambda each: each.seconds)
    return bound if chosen.seconds < bound.seconds else chosen
