"""The transport `local`, for tasks on the head node itself: each command is a child of this process."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import threading
from collections.abc import Callable

from orchestrator.adapters.transport import EXIT_STATUS_WAIT_S, Channel, ChannelClosed, OpenChannels, Tail
from orchestrator.core.errors import HostUnfit
from orchestrator.core.plan import HostPlan


class LocalTransport:
    """Starts commands with /bin/sh, each in its own session, as sshd does."""

    def __init__(self) -> None:
        self._channels = OpenChannels()
        self._children: list[subprocess.Popen[bytes]] = []

    def open(self, host: HostPlan, command: str) -> Channel:
        """Start `command`.

        Raises:
            HostUnfit: this machine cannot start a process.
        """
        self._reap()
        try:
            child = subprocess.Popen(
                ["/bin/sh", "-c", command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
            )
        except OSError as error:
            raise HostUnfit(
                host.name,
                f"cannot start /bin/sh on this machine: {error.strerror}",
                hint="free memory or processes (ulimit -u, ulimit -n) and try again",
            ) from error
        self._children.append(child)
        channel = LocalChannel(child)
        channel.forget = self._channels.add(host, channel)
        return channel

    def close(self, host: HostPlan) -> None:
        """Close every channel to this host that is still open."""
        self._channels.close(host)
        self._reap()

    def _reap(self) -> None:
        # Closing a channel kills nothing: over SSH, too, a command that ignores the end of its stdin lives on.
        self._children = [child for child in self._children if child.poll() is None]


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
            for pipe in (self._stdin, self._stdout, self._stderr):
                pipe.close()
            os.close(self._alarm)
        self._child.poll()
        self.forget()

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
        while not self._stderr.closed:
            try:
                data = os.read(self._stderr.fileno(), 65536)
            except BlockingIOError:
                return
            if not data:
                self._stderr.close()
            self._tail.add(data)
