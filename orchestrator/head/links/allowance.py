"""Limits how much a host may send unasked, by a token bucket. A host above the limit is read more slowly.

Real agents stay far below: they report once a heartbeat, and when a task changes. They send only their newest report,
so an agent that is read slowly loses only intermediate states.
"""

from __future__ import annotations


class Allowance:
    """A bucket that fills by `per_s` each second, up to `burst`."""

    def __init__(self, per_s: float, burst: float, now: float) -> None:
        self._per_s = per_s
        self._burst = burst
        self._left = burst
        self._at = now

    def spend(self, amount: float, now: float) -> float:
        """Spend an amount, and return for how many seconds to spend no more: 0 while the bucket is not empty.

        A negative amount is given back.

        >>> bucket = Allowance(per_s=2.0, burst=3.0, now=0.0)
        >>> [bucket.spend(1, now=0.0) for _ in range(5)]
        [0.0, 0.0, 0.0, 0.5, 1.0]
        >>> bucket.spend(1, now=10.0)
        0.0
        """
        filled = min(self._burst, self._left + (now - self._at) * self._per_s)
        self._left = min(self._burst, filled - amount)
        self._at = now
        return max(0.0, -self._left / self._per_s)


BURST_S = 10.0
"""An allowance can save up what it grants in this time."""

FLOOD_S = 10.0
"""A connection that was slowed down for so long in all is reported as a flood."""


class Intake:
    """Counts what one connection has sent unasked against its allowances."""

    def __init__(self, reports_per_s: float, bytes_per_s: float, now: float) -> None:
        self._reports = Allowance(reports_per_s, reports_per_s * BURST_S, now)
        self._bytes = Allowance(bytes_per_s, bytes_per_s * BURST_S, now)
        self._waited_s = 0.0
        self._was_flood = False

    def spend(self, reported: bool, unasked_bytes: int, now: float) -> float:
        """Count what was read, and return for how long to read nothing.

        Args:
            reported: Whether a report was among it. Several in one piece count as one, since only the newest is used.
            unasked_bytes: How much of it nobody had asked for. Negative where it completes an answer that was counted.
            now: An instant of the monotonic clock.
        """
        wait_s = max(self._reports.spend(int(reported), now), self._bytes.spend(unasked_bytes, now))
        self._waited_s += wait_s
        return wait_s

    def is_flood(self) -> bool:
        """Return whether it was slowed down for FLOOD_S. True only once."""
        before, self._was_flood = self._was_flood, self._waited_s >= FLOOD_S
        return self._was_flood and not before
