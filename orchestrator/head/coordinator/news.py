"""Counts journaled turns, and wakes the requests that wait for the next one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator


class TurnCount:
    """A counter that the deciding thread increments, and for which any thread may wait."""

    def __init__(self) -> None:
        self.seq = 0
        """The number of turns so far."""
        self._wakes: tuple[Callable[[], object], ...] = ()
        """Replaced as a whole and never changed, so that readers need no lock."""

    def more(self) -> None:
        """Count a turn, and wake those who wait."""
        self.seq += 1
        self.wake()

    def wake(self) -> None:
        """Wake those who wait: there is a new turn, or there will be no more."""
        for wake in self._wakes:
            with contextlib.suppress(RuntimeError):  # its event loop has ended
                wake()

    @contextlib.contextmanager
    def waking(self, wake: Callable[[], object]) -> Iterator[None]:
        """Call `wake` at each turn of the block. It must not block. Only one event loop enters such blocks."""
        self._wakes = (*self._wakes, wake)
        try:
            yield
        finally:
            self._wakes = tuple(other for other in self._wakes if other is not wake)
