"""Measures how far the clock of a host is ahead of the head's, by the round trips of orders."""

from __future__ import annotations

import math

from orchestrator.core.words import duration

SKEW_MAX_S = 2.0
"""A difference above this is reported."""


class HostClock:
    """The clock of one host. It read its time between an order and the answer, which bounds the difference."""

    def __init__(self) -> None:
        self._low, self._high = -math.inf, math.inf

    def add_sample(self, time: float, asked: float, answered: float) -> None:
        """Add a time of the host's clock, and the times of the order and the answer by the head's, in Unix time."""
        low, high = time - answered, time - asked
        if low > self._high or high < self._low:  # one of the clocks was set meanwhile
            self._low, self._high = low, high
        else:
            self._low, self._high = max(low, self._low), min(high, self._high)

    @property
    def ahead_s(self) -> float:
        """How far it is ahead at the middle of the bounds; negative where it is behind, and 0 if both may agree."""
        return 0.0 if self._low <= 0.0 <= self._high else (self._low + self._high) / 2

    @property
    def skew_s(self) -> float:
        """How far it is ahead at least; negative where it is behind."""
        return max(self._low, 0.0) + min(self._high, 0.0)

    @property
    def sentence(self) -> str:
        """Say the difference."""
        side = "ahead of" if self.skew_s > 0 else "behind"
        return f"its clock is {duration(abs(self.skew_s))} {side} that of the head node"

    @property
    def is_off(self) -> bool:
        """Whether the clocks differ by more than people expect."""
        return abs(self.skew_s) > SKEW_MAX_S
