"""A thread that does some work periodically, so that no decision waits for it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)


class Lookout:
    """Calls `work` every `every_s` seconds, and once more at the end. After an error, which is logged, it goes on."""

    def __init__(self, work: Callable[[], None], every_s: float, *, name: str, gap: str) -> None:
        """`gap` is what the log says where the work fails."""
        self._work, self._every_s, self._gap = work, every_s, gap
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def is_ending(self) -> bool:
        """Whether the present call is the last one."""
        return self._end.is_set()

    def close(self, *, wait_s: float) -> None:
        """Work once more, and end. Waits at most so long for work that hangs."""
        self._end.set()
        if self._thread.is_alive():
            self._thread.join(timeout=wait_s)

    def _run(self) -> None:
        while not self._end.wait(self._every_s):
            self._safely()
        self._safely()

    def _safely(self) -> None:
        try:
            self._work()
        except Exception:
            log.exception("%s", self._gap)
