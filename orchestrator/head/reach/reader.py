"""One thread that reads from many children and sockets: a thread for each was most of the cost of a heartbeat.

Each descriptor is read once a turn, up to READ_BYTES: one that sends much delays the others by one such piece.
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
"""The capacity of a pipe, and the most that one turn reads of one descriptor."""

Ready = Callable[[], float]
"""Reads a descriptor once without blocking. Returns for how many seconds to read it no more."""


class Reader:
    """Any thread may call it. Its own thread begins with the first descriptor, and then never ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ready: dict[int, Ready] = {}
        self._soon: deque[Callable[[], object]] = deque()
        self._paused: list[tuple[float, int, int, Ready]] = []
        """The descriptors that are read again at an instant. Only the reader's thread uses it."""
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
        """Stop reading a descriptor. Call it before closing it, since its number may soon be reused."""
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
        if self._epoll is None:  # set only once all is made: after a failure half-way, all is tried again
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
            if self._ready.get(descriptor) is ready:  # its number may have been reused by now
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
    """Do the work, and return how long to pause. A bug in orch with one channel must not end the others' thread."""
    try:
        pause_s = work()
    except Exception:
        log.exception("a fault in the receiver of a channel")
        return None
    return pause_s if isinstance(pause_s, float) else 0.0


READER = Reader()
"""The reader of this process."""
