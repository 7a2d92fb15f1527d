"""Time: a heap of what happens next, and the machines' clocks, each of which runs at its own rate."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable


class Violation(BaseException):
    """A rule was broken. `check` names the rule, and the text says how.

    It is no Exception: the product's guards, such as the one around what follows a decision, must not swallow it.
    """

    def __init__(self, check: str, sentence: str) -> None:
        super().__init__(f"{check}: {sentence}")
        self.check = check


class Heap:
    """True time in seconds. Things that are due at the same time happen in the order in which they were added."""

    def __init__(self) -> None:
        self.now = 0.0
        self._items: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def at(self, at: float, thunk: Callable[[], None]) -> None:
        """Call `thunk` at that time."""
        heapq.heappush(self._items, (max(at, self.now), next(self._numbers), thunk))

    def after(self, delay_s: float, thunk: Callable[[], None]) -> None:
        """Call `thunk` after a delay."""
        self.at(self.now + delay_s, thunk)

    @property
    def next_at(self) -> float:
        """When the next thing happens; infinity if nothing is left."""
        return self._items[0][0] if self._items else float("inf")

    def pop(self) -> Callable[[], None]:
        """Move to the time of the next thing, and return it."""
        self.now, _, thunk = heapq.heappop(self._items)
        return thunk


class Clock:
    """A monotonic clock of a boot or a process. It has its own start, and runs slightly fast or slow."""

    def __init__(self, heap: Heap, rate: float, begins: float = 0.0) -> None:
        self._heap = heap
        self.rate = rate
        self._offset = begins - heap.now * rate

    def __call__(self) -> float:
        return self._heap.now * self.rate + self._offset

    def when(self, reading: float) -> float:
        """Return the true time at which the clock has that reading."""
        return (reading - self._offset) / self.rate
