"""Time limits for blocking calls that accept no timeout of their own.

All alarms share one thread. One `threading.Timer` per call was measured: it made up a tenth of what a connection
costs the head.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

log = logging.getLogger(__name__)

NO_THREAD_S = 1.0
"""If the machine allows no new thread for an alarm, it is tried again after this time."""


class Alarms:
    """A set of pending alarms. The first alarm starts the shared thread, which then never ends."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._pending: dict[object, tuple[float, Callable[[], object]]] = {}
        self._looks_at = math.inf
        """When the thread wakes next (monotonic). Cancelling an alarm does not change it, and wakes nobody."""
        self._started = False

    @contextmanager
    def after(self, delay_s: float, do: Callable[[], object]) -> Iterator[None]:
        """Call `do` if the body takes longer than `delay_s`. It runs in a thread of its own, since it may block."""
        alarm, due_at = object(), time.monotonic() + delay_s
        with self._changed:
            self._pending[alarm] = (due_at, do)
            if due_at < self._looks_at:
                self._looks_at = due_at
                self._changed.notify()
            if not self._started:
                try:
                    threading.Thread(target=self._watch, name="alarms", daemon=True).start()
                    self._started = True
                except RuntimeError:
                    log.warning("no thread can be started for the alarms; the next alarm tries again")
        try:
            yield
        finally:
            with self._changed:
                self._pending.pop(alarm, None)

    def _watch(self) -> None:
        with self._changed:
            while True:
                now = time.monotonic()
                for alarm, (due_at, do) in list(self._pending.items()):
                    if due_at <= now:
                        try:
                            threading.Thread(target=do, name="alarm", daemon=True).start()
                            del self._pending[alarm]
                        except RuntimeError:  # without its alarm, the call may block for ever
                            log.warning("no thread can be started; trying again in %.0f s", NO_THREAD_S)
                            self._pending[alarm] = (now + NO_THREAD_S, do)
                self._looks_at = min((due_at for due_at, _ in self._pending.values()), default=math.inf)
                self._changed.wait(None if self._looks_at == math.inf else self._looks_at - now)


ALARMS = Alarms()
"""The alarms of this process."""
