"""Wires: they deliver bytes in order and late, stall while they are cut, and lose bytes only with the connection."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random

from tests.sim.heap import Heap


class Wire:
    """One direction of a connection. None in the queue is its end."""

    def __init__(
        self,
        heap: Heap,
        chance: Random,
        latency_s: float,
        late_max_s: float,
        is_cut: Callable[[], bool],
        deliver: Callable[[bytes | None], None],
    ) -> None:
        self._heap = heap
        self._chance = chance
        self._latency_s = latency_s
        self._late_max_s = late_max_s
        self._is_cut = is_cut
        self._deliver = deliver
        self._queue: deque[tuple[float, bytes | None]] = deque()
        self._ready_at = 0.0
        self._armed = False
        self.dead = False

    def send(self, data: bytes | None) -> None:
        """Send bytes, which arrive after everything that was sent before."""
        if self.dead:
            return
        late_s = self._latency_s
        if self._chance.random() < 0.01:  # TCP retransmits
            late_s = min(20.0 * late_s, self._late_max_s)
        self._ready_at = max(self._ready_at, self._heap.now + late_s * self._chance.random())
        self._queue.append((self._ready_at, data))
        if not self._armed:
            self._arm(self._ready_at)

    def heal(self) -> None:
        """End a cut. TCP retransmits when its timer expires."""
        if self._queue and not self._armed and not self.dead:
            self._arm(self._heap.now + self._chance.uniform(0.1, 8.0))

    def break_off(self) -> None:
        """Lose what is in flight. The beginning of a frame may still arrive."""
        if self.dead:
            return
        self.dead = True
        if self._queue and not self._is_cut():
            data = self._queue[0][1]
            if data is not None and self._chance.random() < 0.5:
                self._deliver(data[: self._chance.randrange(len(data))])
        self._queue.clear()

    def _arm(self, at: float) -> None:
        self._armed = True
        self._heap.at(at, self._arrive)

    def _arrive(self) -> None:
        self._armed = False
        while self._queue and not self.dead and not self._is_cut():
            ready_at, data = self._queue[0]
            if ready_at > self._heap.now:
                self._arm(ready_at)
                return
            self._queue.popleft()
            self._deliver(data)
