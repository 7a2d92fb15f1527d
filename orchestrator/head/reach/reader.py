"""One thread that reads what many children and sockets say: a thread for each was most of what a heartbeat cost.

Each is read once a turn, and at most so much: who says much, or lies, delays the others by one piece of its own.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable

log = logging.getLogger(__name__)

READ_BYTES = 1 << 16
"""What a pipe holds: one turn of one descriptor."""

Ready = Callable[[], float]
"""Reads once without blocking. Returns for how many seconds to read nothing more of it."""


class Reader:
    """Any thread may ask. The thread begins with the first descriptor, and then never ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ready: dict[int, Ready] = {}
        self._soon: deque[Callable[[], object]] = deque()
        self._paused: list[tuple[float, int, int, Ready]] = []
        """Those that are read on at an instant; of the thread alone."""
        self._numbers = itertools.count()
        self._epoll: select.epoll | None = None
        self._bell = -1

    def watch(self, descriptor: int, ready: Ready) -> None:
        """Call `ready` in the reader's thread whenever there is something to read, until `leave`."""
        with self._lock:
            epoll = self._started()
            self._ready[descriptor] = ready
            epoll.register(descriptor, select.EPOLLIN)

    def leave(self, descriptor: int) -> None:
        """Look at it no more. To be called before it is closed: its number may soon be another's."""
        with self._lock:
            if self._ready.pop(descriptor, None) is not None and self._epoll is not None:
                with contextlib.suppress(OSError):  # it is paused
                    self._epoll.unregister(descriptor)

    def soon(self, work: Callable[[], object]) -> None:
        """Do the work in the reader's thread. It must not block."""
        with self._lock:
            self._started()
            self._soon.append(work)
        os.eventfd_write(self._bell, 1)

    def _started(self) -> select.epoll:
        if self._epoll is None:  # kept only once all of it is there: what failed half-way is tried again
            with contextlib.ExitStack() as undo:
                epoll = undo.enter_context(select.epoll())
                bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
                undo.callback(os.close, bell)
                epoll.register(bell, select.EPOLLIN)
                threading.Thread(target=self._run, args=(epoll, bell), name="reader", daemon=True).start()
                undo.pop_all()
            self._epoll, self._bell = epoll, bell
        return self._epoll

    def _run(self, epoll: select.epoll, bell: int) -> None:
        while True:
            wait_s = max(0.0, self._paused[0][0] - time.monotonic()) if self._paused else None
            for descriptor, _ in epoll.poll(wait_s):
                if descriptor == bell:
                    with contextlib.suppress(BlockingIOError):
                        os.eventfd_read(bell)
                    while self._soon:
                        _without_fault(self._soon.popleft())
                elif (ready := self._ready.get(descriptor)) is not None:
                    self._read(descriptor, ready)
            self._go_on()

    def _read(self, descriptor: int, ready: Ready) -> None:
        pause_s = _without_fault(ready)
        if pause_s is None:
            if self._ready.get(descriptor) is ready:  # its number may be another's by now
                self.leave(descriptor)
        elif pause_s > 0:
            with self._lock:
                if self._ready.get(descriptor) is not ready or self._epoll is None:
                    return
                self._epoll.unregister(descriptor)
            due_at = time.monotonic() + pause_s
            heapq.heappush(self._paused, (due_at, next(self._numbers), descriptor, ready))

    def _go_on(self) -> None:
        now = time.monotonic()
        while self._paused and self._paused[0][0] <= now:
            _, _, descriptor, ready = heapq.heappop(self._paused)
            with self._lock:
                if self._ready.get(descriptor) is ready and self._epoll is not None:
                    self._epoll.register(descriptor, select.EPOLLIN)


def _without_fault(work: Callable[[], object]) -> float | None:
    """Do it, and return how long to pause. A fault of ours with one must not take the thread from the others."""
    try:
        pause_s = work()
    except Exception:
        log.exception("a fault in what a channel does with what it read")
        return None
    return pause_s if isinstance(pause_s, float) else 0.0


READER = Reader()
"""The reader of this process."""
