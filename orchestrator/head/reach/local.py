"""The transport `local`, for tasks on the head node itself: each command is a child of this process."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import threading
from collections.abc import Callable

from orchestrator.core.errors import HostUnfit
from orchestrator.core.plan import HostPlan
from orchestrator.head.reach.reader import READ_BYTES, READER
from orchestrator.head.reach.transport import (
    EXIT_STATUS_WAIT_S,
    Channel,
    ChannelClosed,
    OpenChannels,
    Receiver,
    Tail,
)

_DRAINED_READS_MAX = 16
"""How often stderr is read at the end of the output: a child that prints endlessly must not hold up its reader."""


class Children:
    """The children of a transport, and the channels to them."""

    def __init__(self) -> None:
        self._channels = OpenChannels()
        self._children: list[subprocess.Popen[bytes]] = []

    def start(self, host: HostPlan, words: list[str]) -> subprocess.Popen[bytes]:
        """Start a program in a session of its own, as sshd does. Raises HostUnfit where this machine cannot."""
        self._reap()
        try:
            child = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
            )
        except OSError as error:
            raise HostUnfit(
                host.name,
                f"cannot start {words[0]} on this machine: {error.strerror}",
                hint="free memory or processes (ulimit -u, ulimit -n) and try again",
            ) from error
        self._children.append(child)
        return child

    def opened(self, host: HostPlan, channel: LocalChannel) -> Channel:
        """Remember a channel until it is closed, and return it."""
        channel.forget = self._channels.add(host, channel)
        return channel

    def close(self, host: HostPlan) -> None:
        """Close every channel to this host that is still open."""
        self._channels.close(host)
        self._reap()

    def _reap(self) -> None:
        # Closing a channel kills nothing: over SSH, too, a command that ignores the end of its stdin lives on.
        self._children = [child for child in self._children if child.poll() is None]


class LocalTransport(Children):
    """Starts commands with /bin/sh on this machine."""

    def open(self, host: HostPlan, command: str) -> Channel:
        """Start `command`. Raises HostUnfit where this machine cannot start a process."""
        return self.opened(host, LocalChannel(self.start(host, ["/bin/sh", "-c", command])))


class LocalChannel:
    """The pipes of one child. See transport.Channel."""

    def __init__(self, child: subprocess.Popen[bytes], tail: Tail | None = None) -> None:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        self._child = child
        self._stdin, self._stdout, self._stderr = child.stdin, child.stdout, child.stderr
        for pipe in (self._stdin, self._stderr):
            os.set_blocking(pipe.fileno(), False)
        self._tail = tail or Tail()
        self._closed = False
        self._ended = False
        # Every waiting thread also polls this pipe. close() closes the writing end, which wakes them all.
        self._alarm, self._alarm_writer = os.pipe()
        self._closing = threading.Lock()
        # A descriptor is closed only while no thread uses it: its number may be reused a moment later.
        self._reading, self._writing = threading.Lock(), threading.Lock()
        self._receive: Receiver | None = None
        """The receiver of `feed`; None while read() is used."""
        self._end_delivered = False
        """Whether the end was delivered to the receiver. Only the reader's thread uses it."""
        self.forget: Callable[[], None] = lambda: None

    def read(self, size: int) -> bytes:
        with self._reading:
            while not self._closed and not self._ended:
                poll = select.poll()
                poll.register(self._stdout, select.POLLIN)
                poll.register(self._alarm, select.POLLIN)
                if not self._stderr.closed:
                    poll.register(self._stderr, select.POLLIN)
                ready = {descriptor for descriptor, _ in poll.poll()}
                if self._alarm in ready:
                    break
                self._drain_stderr()
                if self._stdout.fileno() in ready:
                    data = os.read(self._stdout.fileno(), size)
                    self._ended = not data
                    self._drain_stderr()
                    return data
        return b""

    def feed(self, receive: Receiver) -> None:
        with self._reading:
            self._receive = receive
            if not self._closed and not self._ended:
                os.set_blocking(self._stdout.fileno(), False)
                READER.watch(self._stdout.fileno(), self._stdout_ready)
                if not self._stderr.closed:
                    READER.watch(self._stderr.fileno(), self._stderr_ready)
                return
        READER.soon(self._deliver_end)

    def _stdout_ready(self) -> float:
        with self._reading:
            if self._closed or self._ended:
                return 0.0
            try:
                data = os.read(self._stdout.fileno(), READ_BYTES)
            except BlockingIOError:
                return 0.0
            self._ended = not data
            if self._ended:
                self._drain_stderr()
                self._leave()
        if data and self._receive is not None:
            return self._receive(data)
        self._deliver_end()
        return 0.0

    def _stderr_ready(self) -> float:
        with self._reading:
            self._read_stderr()
        return 0.0

    def _leave(self) -> None:
        """Remove its pipes from the reader. The lock of reading is held."""
        for pipe in (self._stdout, self._stderr):
            if not pipe.closed:
                READER.leave(pipe.fileno())

    def _deliver_end(self) -> None:
        if not self._end_delivered and self._receive is not None:
            self._end_delivered = True
            self._receive(b"")

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        with self._writing:
            while view:
                if self._closed:
                    raise ChannelClosed("the channel was closed")
                poll = select.poll()
                poll.register(self._stdin, select.POLLOUT)
                poll.register(self._alarm, select.POLLIN)
                poll.poll()
                try:
                    view = view[os.write(self._stdin.fileno(), view) :]
                except BlockingIOError:
                    continue
                except OSError as error:
                    raise ChannelClosed("the command has ended") from error

    def close(self) -> None:
        with self._closing:
            if self._closed:
                return
            self._closed = True
        os.close(self._alarm_writer)
        with self._reading, self._writing:
            self._drain_stderr()
            if self._receive is not None:
                self._leave()
            for pipe in (self._stdin, self._stdout, self._stderr):
                pipe.close()
            os.close(self._alarm)
        self._child.poll()
        self.forget()
        if self._receive is not None:
            READER.soon(self._deliver_end)

    def stderr_tail(self) -> str:
        # A thread that waits in read() drains stderr itself, so there is something left only when none does.
        if self._reading.acquire(blocking=False):
            try:
                self._drain_stderr()
            finally:
                self._reading.release()
        return self._tail.text()

    def exit_status(self) -> int | None:
        if self._ended:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(EXIT_STATUS_WAIT_S)
        code = self._child.poll()
        return code if code is not None and code >= 0 else None

    def _drain_stderr(self) -> None:
        for _ in range(_DRAINED_READS_MAX):
            if not self._read_stderr():
                return

    def _read_stderr(self) -> bool:
        """Read a piece without blocking, and return whether there may be more. The lock of reading is held."""
        if self._stderr.closed:
            return False
        try:
            data = os.read(self._stderr.fileno(), READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            READER.leave(self._stderr.fileno())
            self._stderr.close()
        self._tail.add(data)
        return bool(data)
