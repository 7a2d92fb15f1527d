"""A thread that looks at something periodically, so that no decision waits for it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)


class Lookout:
    """Calls `look` every `every_s` seconds, and once more at the end. An error is logged, and the next look is made."""

    def __init__(self, work: Callable[[], None], every_s: float, *, name: str, gap: str) -> None:
        """`gap` is what the log says where a look fails."""
        self._work, self._every_s, self._gap = work, every_s, gap
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    @property
    def is_ending(self) -> bool:
        """Whether the present look is the last one."""
        return self._end.is_set()

    def close(self, *, wait_s: float) -> None:
        """Look once more, and end. A look that hangs is waited for so long at most."""
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
