"""How often to save: the interval that costs least. A pure function; it runs inside the task, which measures the cost.

A run that saves seldom trains many steps again after a failure, and one that saves often loses time to saving: with a
save that holds the training up for `cost_s`, and a failure every `failure_s`, both together are least at sqrt(2 *
cost_s * failure_s) (Young, 1974).
"""

from __future__ import annotations

import math

SHARE_MAX = 0.01
"""The largest share of the time for which saving may hold the training up."""

WRITING_SHARE_MAX = 0.1
"""The same of what is written beside the training, which takes of the disk and of a core."""

SHORTEST_S = 1.0
"""A shorter interval gains nothing, since a restart takes longer than that."""

LONGEST_S = 1800.0
"""The most training that a failure may cost, whatever the formula says: the rate of failures in it is a guess."""

FAILURE_S = 84 * 3600.0
"""The mean time between failures that is assumed where none is told: that of two hosts by the prior of
`core/saving.py`."""


class Interval:
    """How long to train between two saves, and what decided."""

    def __init__(self, seconds: float, why: str) -> None:
        self.seconds = seconds
        self.why = why
        """`least`: the formula. Else the limit that was met: `share`, `writing`, `shortest`, `longest`."""


def interval(cost_s: float, failure_s: float, written_s: float = 0.0) -> Interval:
    """Return the interval at which saving costs least.

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
    found = Interval(math.sqrt(2 * max(cost_s, 0.0) * max(failure_s, 0.0)), "least")
    if found.seconds > LONGEST_S:
        found = Interval(LONGEST_S, "longest")
    least = (
        Interval(SHORTEST_S, "shortest"),
        Interval(written_s / WRITING_SHARE_MAX, "writing"),
        Interval(cost_s / SHARE_MAX, "share"),
    )
    bound = max(least, key=lambda each: each.seconds)
    return bound if found.seconds < bound.seconds else found
