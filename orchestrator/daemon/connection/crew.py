"""Threads that connections share: one looks at all of them again and again, and others do what blocks.

A thread for each connection's writes, one for its silence, and those that once prepared a host made four a host at the
head. Such work is rare. So a thread is lent for as long as it takes; one that blocks on a link that is cut delays no
other connection.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

log = logging.getLogger(__name__)

IDLE_MAX = 4
"""How many threads stay when there is no work for them."""


class Crew:
    """Any thread may ask. The threads are daemons: none holds up the end of the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle = 0
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._rounds: dict[Callable[[], None], float] = {}
        self._fewer = threading.Event()
        self._walks = False

    def do(self, work: Callable[[], None]) -> None:
        """Begin the work now, in a thread that is idle or in a new one."""
        with self._lock:
            is_taken = self._idle > 0
            self._idle -= is_taken
        if is_taken:
            self._work.put(work)
        else:
            threading.Thread(target=self._serve, args=(work,), name="connection-crew", daemon=True).start()

    def submit(self, work: Callable[..., Any], /, *args: Any) -> None:
        """Begin the work now, as `do`: what a ThreadPoolExecutor is for, without a thread that stays for each."""
        self.do(partial(work, *args))

    def again(self, look: Callable[[], None], every_s: float) -> None:
        """Call it about so often, until `no_more`. It must not block."""
        with self._lock:
            self._rounds[look] = every_s
            begins, self._walks = not self._walks, True
        if begins:
            threading.Thread(target=self._walk, name="connection-silence", daemon=True).start()

    def no_more(self, look: Callable[[], None]) -> None:
        """Call it no more, but for a call that has begun."""
        with self._lock:
            self._rounds.pop(look, None)
            if not self._rounds:
                self._fewer.set()

    def _serve(self, work: Callable[[], None]) -> None:
        while True:
            _without_fault(work)
            with self._lock:
                if self._idle >= IDLE_MAX:
                    return
                self._idle += 1
            work = self._work.get()

    def _walk(self) -> None:
        while True:
            with self._lock:
                self._walks = bool(self._rounds)
                if not self._rounds:
                    return
                looks, every_s = list(self._rounds), min(self._rounds.values())
                fewer = self._fewer = threading.Event()
            if not fewer.wait(every_s):
                for look in looks:
                    _without_fault(look)


def _without_fault(work: Callable[[], None]) -> None:
    """Do it. A fault of ours with one connection must not take the thread from the others."""
    try:
        work()
    except Exception:
        log.exception("a fault in what a connection does beside its reading")
