"""Time: one heap of what happens next, and the clocks that machines read, each at a rate of its own."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable


class Violation(AssertionError):
    """Something that must never be; `check` names the rule, the text says where it broke."""

    def __init__(self, check: str, sentence: str) -> None:
        super().__init__(f"{check}: {sentence}")
        self.check = check


class Heap:
    """True time, in seconds. What is due at the same instant happens in the order in which it was asked for."""

    def __init__(self) -> None:
        self.now = 0.0
        self._items: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def at(self, at: float, thunk: Callable[[], None]) -> None:
        """Let it happen then."""
        heapq.heappush(self._items, (max(at, self.now), next(self._numbers), thunk))

    def after(self, delay_s: float, thunk: Callable[[], None]) -> None:
        """Let it happen later."""
        self.at(self.now + delay_s, thunk)

    @property
    def next_at(self) -> float:
        """When the next thing happens; infinity for never."""
        return self._items[0][0] if self._items else float("inf")

    def pop(self) -> Callable[[], None]:
        """Go there."""
        self.now, _, thunk = heapq.heappop(self._items)
        return thunk


class Clock:
    """A monotonic clock of one boot or one process: it begins somewhere, and runs a little fast or slow."""

    def __init__(self, heap: Heap, rate: float, begins: float = 0.0) -> None:
        self._heap = heap
        self.rate = rate
        self._offset = begins - heap.now * rate

    def __call__(self) -> float:
        return self._heap.now * self.rate + self._offset

    def when(self, reading: float) -> float:
        """The true time at which it shows that."""
        return (reading - self._offset) / self.rate
