"""The agent's loop: one thread, one poll. Whoever waits for a descriptor registers a function for it."""

from __future__ import annotations

import fcntl
import os
import select
import time
from collections import deque

from orchestrator.protocol.channel import beginning

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    Sent = Callable[[], None]

READ = select.POLLIN
WRITE = select.POLLOUT

PIPE_BYTES = 1 << 20
"""The size of the pipe to sshd, where the kernel allows it. With its default of 64 KiB the agent writes again after
each packet that sshd takes, and there are thirty thousand in a gigabyte."""

FULL_S = 0.0005
"""How long a full pipe of that size is left alone. sshd takes about half of it meanwhile."""

QUEUE_BYTES_MAX = 8 << 20
"""More than this waiting for the head: no further order is read until it has taken some."""


class Loop:
    """Calls functions when their descriptor is ready, or their time has come."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._ready: dict[int, Callable[[int], None]] = {}
        self._timers: list[tuple[float, Callable[[], None]]] = []

    def watch(self, descriptor: int, events: int, ready: Callable[[int], None]) -> None:
        """Call `ready` with the events that come. A second call for the same descriptor replaces the first."""
        self._ready[descriptor] = ready
        self._poll.register(descriptor, events)

    def forget(self, descriptor: int) -> None:
        """Call nothing any more for a descriptor, which is about to be closed."""
        if self._ready.pop(descriptor, None) is not None:
            self._poll.unregister(descriptor)

    def after(self, delay_s: float, do: Callable[[], None]) -> None:
        """Call `do` once, after `delay_s`."""
        self._timers.append((time.monotonic() + delay_s, do))

    def turn(self) -> None:
        """Wait for the next thing, and do it."""
        timeout_ms: float | None = None
        if self._timers:
            due_at = min(at for at, _ in self._timers)
            timeout_ms = max(0.0, (due_at - time.monotonic()) * 1000 + 0.5)
        for descriptor, events in self._poll.poll(timeout_ms):
            ready = self._ready.get(descriptor)
            if ready is not None:
                ready(events)
        now = time.monotonic()
        due = [do for at, do in self._timers if at <= now]
        self._timers = [timer for timer in self._timers if timer[0] > now]
        for do in due:
            do()


class Output:
    """The frames to the head. Reports go first, and only the newest. Nothing here waits.

    A report holds all that is known, so an older one that has not left yet is of no use to anybody. After each report
    one other frame may go: the head reads an agent that always has a new report more slowly, and it needs its answers.
    """

    def __init__(self, loop: Loop, descriptor: int) -> None:
        self._loop = loop
        self._descriptor = descriptor
        self._under_way: list[memoryview] = []
        self._sent: Sent = _nothing
        """To be called once what is under way has left."""
        self._report: bytes | None = None
        self._reported_last = False
        self._queue: deque[tuple[bytes, bytes | memoryview, Sent]] = deque()
        self.queued_bytes = 0
        self.broken = False
        # Whether it is a pipe that was made large. Other kinds, and users who have too many pipes, keep theirs.
        try:
            self._is_large = fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, PIPE_BYTES) >= PIPE_BYTES
        except OSError:
            self._is_large = False
        self._is_full = False
        """Whether a large pipe was full, and is left alone for a moment."""
        os.set_blocking(descriptor, False)

    def report(self, frame: bytes) -> None:
        """Send a report, in the place of one that still waits."""
        self._report = frame
        self._flush(0)

    def send(
        self, message: Mapping[str, Any], blob: bytes | memoryview = b"", sent: Sent | None = None
    ) -> None:
        """Send a frame, in order among themselves. FrameError if it is too long for one.

        The blob is not copied: it must stay as it is until `sent` is called.
        """
        start = beginning(message, len(blob))
        self.queued_bytes += len(start) + len(blob)
        self._queue.append((start, blob, sent or _nothing))
        self._flush(0)

    def _next(self) -> bool:
        if self._report is not None and not (self._reported_last and self._queue):
            self._reported_last = True
            self._under_way, self._report = [memoryview(self._report)], None
        elif self._queue:
            self._reported_last = False
            start, blob, self._sent = self._queue.popleft()
            self.queued_bytes -= len(start) + len(blob)
            self._under_way = [memoryview(start), memoryview(blob)]
        else:
            return False
        return True

    def _flush(self, _events: int) -> None:
        if self._is_full:
            return
        try:
            while self._under_way or self._next():
                size = os.writev(self._descriptor, self._under_way)
                while self._under_way and size >= len(self._under_way[0]):
                    size -= len(self._under_way.pop(0))
                if self._under_way:
                    self._under_way[0] = self._under_way[0][size:]
                else:
                    sent, self._sent = self._sent, _nothing
                    sent()
        except BlockingIOError:
            if self._is_large:
                self._is_full = True
                self._loop.forget(self._descriptor)
                self._loop.after(FULL_S, self._wait)
            else:
                self._wait()
            return
        except OSError:
            self.broken = True  # the head is gone; the loop ends at its next look
        self._loop.forget(self._descriptor)

    def _wait(self) -> None:
        """Go on once there is room, however long that takes."""
        self._is_full = False
        self._loop.watch(self._descriptor, WRITE, self._flush)


def _nothing() -> None:
    """Nobody waits for the end of this frame."""
