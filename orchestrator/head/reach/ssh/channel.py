"""The channel of a command that runs over SSH: its streams, its end, and how a connection is let go."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Sequence

import fabric
import paramiko
from paramiko.buffered_pipe import BufferedPipe

from orchestrator.head.reach.transport import EXIT_STATUS_WAIT_S, ChannelClosed, Receiver, Tail

log = logging.getLogger(__name__)

_FED_BYTES = 1 << 18
"""How much is read out of paramiko's buffer at once."""

_KEYS_S = 30.0
"""How long paramiko waits for an exchange of keys."""


class Arriving(BufferedPipe):  # type: ignore[type-arg]  # only its stub is generic
    """One stream of a session, which calls back when data has arrived. Paramiko's thread calls its methods."""

    def __init__(self) -> None:
        super().__init__()
        self.has_new = False
        """Whether data has arrived since this was last set to False."""
        self.arrived: Callable[[], object] = lambda: None
        """Called when data has arrived."""
        self.ended: Callable[[], object] = lambda: None
        """Called at the end of the stream, while the session's lock is held."""

    def feed(self, data: bytes | str) -> None:
        """Add a packet's content."""
        super().feed(data)
        self.has_new = True
        self.arrived()

    def close(self) -> None:
        """Note that nothing more comes."""
        super().close()
        self.ended()


def prepared(session: paramiko.Channel) -> paramiko.Channel:
    """Return the session, with streams that call back when data has arrived. Call it before any data can arrive."""
    session.in_buffer, session.in_stderr_buffer = Arriving(), Arriving()
    # Paramiko grants the host more after a tenth: five thousand packets a gigabyte. The host still has three quarters.
    session.in_window_threshold = session.in_window_size // 4
    return session


class SshChannel:
    """One exec over a connection of its own. See transport.Channel."""

    def __init__(self, session: paramiko.Channel, connections: list[fabric.Connection]) -> None:
        self._session = session
        self._connections = connections
        self._tail = Tail()
        self._ready = _Ready()
        # stdout and stderr share one window: a stderr that nobody takes in would stop stdout as well. So the
        # reader waits for either of them.
        self._streams: list[Arriving] = []
        for stream in (session.in_buffer, session.in_stderr_buffer):
            assert isinstance(stream, Arriving)  # `prepared` made them
            stream.set_event(self._ready)
            stream.ended = self._over
            self._streams.append(stream)
        assert session.transport is not None
        self._clear_to_send = session.transport.clear_to_send
        self._receive: Receiver | None = None
        """The receiver of `feed`; None while read() is used."""
        self._feeding = threading.Lock()
        self._is_late = False
        """Whether a thread will feed the receiver later."""
        self._closed = threading.Event()
        self._ended = False
        self._ends = False
        """Whether a thread was asked to deliver the end."""
        self._end_delivered = False
        """Whether the end was delivered to the receiver."""
        self.forget: Callable[[], None] = lambda: None

    def read(self, size: int) -> bytes:
        session = self._session
        try:
            while not self._closed.is_set():
                self._ready.rearm()
                self._drain_stderr()
                if session.recv_ready():
                    return bytes(session.recv(size))
                if session.eof_received or session.closed:
                    # Bytes that came after recv_ready was asked; none if this is the end
                    data = bytes(session.recv(size))
                    self._drain_stderr()
                    self._ended = not data
                    return data
                self._ready.wait()
        except (paramiko.SSHException, EOFError, OSError):
            # Asking for more failed: the connection is gone, which is an end like any other.
            self._ended = True
        return b""

    def feed(self, receive: Receiver) -> None:
        self._receive = receive
        for stream in self._streams:
            stream.arrived = self._arrived
        self._feed_on()

    def _arrived(self) -> None:
        """Feed what has arrived, in paramiko's thread: waking another costs as much as the rest of a heartbeat."""
        if self._is_late or not any(stream.has_new for stream in self._streams):
            return
        if self._clear_to_send.is_set():
            self._feed_on()
        else:  # while keys are exchanged, granting the host more would wait for this very thread
            self._feed_later(0.0)

    def _over(self) -> None:
        if self._receive is not None and not self._ends:  # in a thread: the caller holds the session's lock
            self._ends = True
            self._ends = self._lend(self._feed_on)

    def _feed_later(self, pause_s: float) -> None:
        self._is_late = True  # before the thread begins, which makes it False
        if not self._lend(self._feed_late, pause_s):
            self._is_late = False

    def _lend(self, work: Callable[..., None], *args: float) -> bool:
        """Do the work in a thread of its own. Return whether one could be started."""
        try:
            threading.Thread(target=work, args=args, name="ssh-feed", daemon=True).start()
        except RuntimeError as e:  # the silence of the link is noticed, and it is closed
            log.warning("no thread can be started to read a connection: %s", e)
            return False
        return True

    def _feed_late(self, pause_s: float) -> None:
        """Feed on after a pause, and once keys are exchanged."""
        self._closed.wait(pause_s)
        self._clear_to_send.wait(_KEYS_S)
        with self._feeding:
            self._is_late = False
        self._feed_on()

    def _feed_on(self) -> None:
        """Feed what has arrived, then the end. If the host has to wait, a thread does it later.

        Meanwhile data stays in paramiko's buffer, which holds one window of it. Paramiko's own thread must go on, for
        key exchanges and for our writes.
        """
        with self._feeding:
            while not self._is_late and (pause_s := self._feed_some()) > 0:
                self._feed_later(pause_s)
                if not self._is_late:
                    self._closed.wait(pause_s)

    def _feed_some(self) -> float:
        """Return how long to wait before more is fed; 0 if all is. The lock of feeding is held."""
        receive, session = self._receive, self._session
        if receive is None or self._end_delivered:
            return 0.0
        is_over = self._ended or self._closed.is_set() or session.eof_received or session.closed
        for stream in self._streams:
            stream.has_new = False
        try:
            self._drain_stderr()
            while session.recv_ready() and not self._closed.is_set():
                if (pause_s := receive(session.recv(_FED_BYTES))) > 0:
                    return pause_s
        except (paramiko.SSHException, EOFError, OSError):
            is_over = True
        if is_over:
            self._ended = self._end_delivered = True
            receive(b"")
        return 0.0

    def write(self, data: bytes) -> None:
        try:
            self._session.sendall(data)
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise ChannelClosed("the connection is closed") from error

    def close(self) -> None:
        if self._closed.is_set():
            self._over()  # there may have been no thread for it
            return
        self._closed.set()
        hang_up(self._connections)
        self._ready.set()
        self.forget()
        self._over()

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
    """Set when either stream has data. A stream that is empty tries to clear it, which is ignored."""

    def clear(self) -> None:
        """Do nothing; see the class."""

    def rearm(self) -> None:
        super().clear()


def hang_up(connections: Sequence[fabric.Connection]) -> None:
    """Close them all, from any thread."""
    # The bastion first: closing what runs through it would otherwise wait for a link that may be cut.
    # Not client.close(): that one may be called by one thread only.
    for connection in connections:
        transport = connection.client.get_transport()
        if transport is not None:
            # End a read that another thread is in: closing a socket does not, and its number may soon be another's
            if isinstance(transport.sock, socket.socket):
                with contextlib.suppress(OSError):  # it has ended already
                    transport.sock.shutdown(socket.SHUT_RDWR)
            transport.close()
