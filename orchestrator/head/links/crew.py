"""Threads that connections share: one checks all of them periodically, and others do work that blocks.

With threads of its own for reading, writing, watching and preparing, each host would need five threads at the head.
Such work is rare. So a shared thread does it; one that blocks on a cut link delays no other connection.
"""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

log = logging.getLogger(__name__)

NO_THREAD_S = 1.0
"""If the machine allows no new thread, it is tried again after this time."""

IDLE_MAX = 4
"""How many threads stay when there is no work for them."""


class Crew:
    """Any thread may call it. Its threads are daemons, so none holds up the end of the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle = 0
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._rounds: dict[Callable[[], None], float] = {}
        self._due: dict[Callable[[], None], float] = {}
        """The work to be done later, each with its time."""
        self._news = threading.Event()
        self._walks = False

    def do(self, work: Callable[[], None]) -> None:
        """Begin the work in a thread that is idle or in a new one: now, or when the machine allows one."""
        with self._lock:
            is_taken = self._idle > 0
            self._idle -= is_taken
            if self._due and not self._walks:  # no thread could be started for it
                self._walk_on()
        if is_taken:
            self._work.put(work)
            return
        try:
            threading.Thread(target=self._serve, args=(work,), name="connection-crew", daemon=True).start()
        except RuntimeError:  # none can be had now, and work that is lost would end a link for good
            log.warning("no thread can be started; trying again in %.0f s", NO_THREAD_S)
            self.later(NO_THREAD_S, work)

    def submit(self, work: Callable[..., Any], /, *args: Any) -> None:
        """Begin the work now, as `do`, with the interface of a ThreadPoolExecutor."""
        self.do(partial(work, *args))

    def later(self, delay_s: float, work: Callable[[], None]) -> None:
        """Begin the work after that time, unless `no_more` comes first."""
        with self._lock:
            self._due[work] = time.monotonic() + delay_s
            self._walk_on()

    def again(self, check: Callable[[], None], every_s: float) -> None:
        """Call it about so often, until `no_more`. It must not block."""
        with self._lock:
            is_sooner = every_s < min(self._rounds.values(), default=math.inf)
            self._rounds[check] = every_s
            if is_sooner:
                self._walk_on()

    def no_more(self, work: Callable[[], None]) -> None:
        """Cancel the work, except for a call that has begun."""
        with self._lock:
            self._rounds.pop(work, None)
            self._due.pop(work, None)
            if not self._rounds and not self._due:
                self._news.set()

    def _walk_on(self) -> None:
        """Start or wake the thread that does what is due. The lock is held."""
        self._news.set()
        if not self._walks:
            try:
                threading.Thread(target=self._walk, name="connection-timers", daemon=True).start()
            except RuntimeError:
                log.warning("no thread can be started for what is due later; the next work tries again")
            else:
                self._walks = True

    def _serve(self, work: Callable[[], None]) -> None:
        while True:
            _without_fault(work)
            with self._lock:
                if self._idle >= IDLE_MAX:
                    return
                self._idle += 1
            work = self._work.get()

    def _walk(self) -> None:
        checked_at = time.monotonic()
        while True:
            with self._lock:
                self._walks = bool(self._rounds or self._due)
                if not self._walks:
                    return
                now = time.monotonic()
                due = [work for work, at in self._due.items() if at <= now]
                for work in due:
                    del self._due[work]
                check_at = checked_at + min(self._rounds.values(), default=math.inf)
                checks = list(self._rounds) if check_at <= now else []
                checked_at = now if checks or not self._rounds else checked_at
                next_at = min([check_at if not checks else now, *self._due.values()])
                news = self._news = threading.Event()
            for work in due:
                self.do(work)
            for check in checks:
                _without_fault(check)
            if not due and not checks:
                news.wait(next_at - now if next_at < math.inf else None)


def _without_fault(work: Callable[[], None]) -> None:
    """Do the work. A bug in orch with one connection must not end the thread that serves the others."""
    try:
        work()
    except Exception:
        log.exception("a fault in the work of a connection")
