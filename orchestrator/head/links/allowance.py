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
