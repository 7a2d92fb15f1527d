"""The channel of a command that runs over SSH: its streams, its end, and how a connection is let go."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable

import fabric
import paramiko

from orchestrator.adapters.transport import EXIT_STATUS_WAIT_S, ChannelClosed, Tail


class SshChannel:
    """One exec over a connection of its own. See transport.Channel."""

    def __init__(self, session: paramiko.Channel, connections: list[fabric.Connection]) -> None:
        self._session = session
        self._connections = connections
        self._tail = Tail()
        self._ready = _Ready()
        # stdout and stderr share one window: a stderr that nobody takes in would stop stdout as well. So the
        # reader waits for either of them.
        session.in_buffer.set_event(self._ready)
        session.in_stderr_buffer.set_event(self._ready)
        self._closed = threading.Event()
        self._ended = False
        self.forget: Callable[[], None] = lambda: None

    def read(self, size: int) -> bytes:
        session = self._session
        try:
            while not self._closed.is_set():
                self._ready.rearm()
                self._drain_stderr()
                if session.recv_ready():
                    return session.recv(size)
                if session.eof_received or session.closed:
                    data = session.recv(size)  # what came between the two questions, else the end
                    self._drain_stderr()
                    self._ended = not data
                    return data
                self._ready.wait()
        except (paramiko.SSHException, EOFError, OSError):
            # Asking for more failed: the connection is gone, which is an end like any other.
            self._ended = True
        return b""

    def write(self, data: bytes) -> None:
        try:
            rest = memoryview(data)
            while rest:
                # It takes as much as fits into a packet: what is cut into pieces here before leaves a small one each.
                sent = self._session.send(rest)  # type: ignore[arg-type]  # a view does, and is no copy
                if not sent:
                    raise ChannelClosed("the connection is closed")
                rest = rest[sent:]
        except ChannelClosed:
            raise
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise ChannelClosed("the connection is closed") from error

    def close(self) -> None:
        if self._closed.is_set():
            return
        self._closed.set()
        hang_up(self._connections)
        self._ready.set()
        self.forget()

    def stderr_tail(self) -> str:
        self._drain_stderr()
        return self._tail.text()

    def exit_status(self) -> int | None:
        if self._ended:
            self._session.status_event.wait(EXIT_STATUS_WAIT_S)
        code = self._session.exit_status
        return code if code >= 0 else None

    def _drain_stderr(self) -> None:
        while self._session.recv_stderr_ready():
            self._tail.add(self._session.recv_stderr(65536))


class _Ready(threading.Event):
    """Set when either stream has something. Each stream clears it when it alone is empty: that must not count."""

    def clear(self) -> None:
        """Nothing; see the class."""

    def rearm(self) -> None:
        super().clear()


def hang_up(connections: list[fabric.Connection]) -> None:
    """Close them all, from any thread."""
    # The bastion first: closing what runs through it would otherwise wait for a link that may be cut.
    # Not client.close(): that one may be called by one thread only.
    for connection in connections:
        transport = connection.client.get_transport()
        if transport is not None:
            _wake(transport.sock)
            transport.close()


def _wake(sock: object) -> None:
    """End a read that another thread is in: closing a socket does not, and its number may soon be another's."""
    if isinstance(sock, socket.socket):
        with contextlib.suppress(OSError):  # it has ended already
            sock.shutdown(socket.SHUT_RDWR)
