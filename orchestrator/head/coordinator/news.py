"""Counts journaled turns, and wakes the requests that wait for the next one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator


class News:
    """The deciding thread counts; any thread may wait."""

    def __init__(self) -> None:
        self.seq = 0
        """How often something has happened."""
        self._wakes: tuple[Callable[[], object], ...] = ()
        """Replaced and never changed: whoever reads it takes no lock."""

    def more(self) -> None:
        """Count one more, and wake who waits."""
        self.seq += 1
        self.wake()

    def wake(self) -> None:
        """Wake who waits: something has changed, or nothing more comes."""
        for wake in self._wakes:
            with contextlib.suppress(RuntimeError):  # its event loop has ended
                wake()

    @contextlib.contextmanager
    def waking(self, wake: Callable[[], object]) -> Iterator[None]:
        """Have `wake` called for as long as the block lasts. It must not block. One event loop enters such blocks."""
        self._wakes = (*self._wakes, wake)
        try:
            yield
        finally:
            self._wakes = tuple(other for other in self._wakes if other is not wake)
