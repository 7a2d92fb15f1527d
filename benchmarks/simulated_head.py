"""The real coordinator, whose hosts are the simulated agents: `python -m benchmarks.simulated_head SOCKET`.

Only the transport is another: a connection to a Unix socket stands for SSH and the exec of the agent's command.
"""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Callable

from orchestrator.core.errors import ConnectFailed
from orchestrator.core.plan import HostPlan
from orchestrator.head.coordinator import main
from orchestrator.head.node.paths import Paths
from orchestrator.head.reach.reader import READ_BYTES, READER
from orchestrator.head.reach.transport import Channel, ChannelClosed, OpenChannels, Receiver


class SocketTransport:
    """Connects to the process of the agents, whatever the host."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._channels = OpenChannels()

    def open(self, host: HostPlan, command: str) -> Channel:  # noqa: ARG002 - as Transport has it
        """Connect. The command is understood."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(self._path)
        except OSError as e:
            connection.close()
            raise ConnectFailed(host.name, f"the agents do not answer: {e.strerror}") from e
        channel = SocketChannel(connection)
        channel.forget = self._channels.add(host, channel)
        return channel

    def close(self, host: HostPlan) -> None:
        """Close every channel to this host that is still open."""
        self._channels.close(host)


class SocketChannel:
    """One connection. See transport.Channel."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._receive: Receiver = lambda _: 0.0
        self.forget: Callable[[], None] = lambda: None

    def read(self, size: int) -> bytes:
        """Wait for the first byte; `b""` at the end."""
        try:
            return self._connection.recv(size)
        except OSError:
            return b""

    def feed(self, receive: Receiver) -> None:
        """Let the reader of the process read it, as it does the pipes of children."""
        self._receive = receive
        READER.watch(self._connection.fileno(), self._read_once)

    def _read_once(self) -> float:
        try:
            data = self._connection.recv(READ_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0.0
        except OSError:
            data = b""
        if not data:
            READER.leave(self._connection.fileno())
        return self._receive(data)

    def write(self, data: bytes) -> None:
        """Wait until all is handed over."""
        try:
            self._connection.sendall(data)
        except OSError as e:
            raise ChannelClosed("the connection is closed") from e

    def close(self) -> None:
        """End a read and a write that other threads are in."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self.forget()

    def stderr_tail(self) -> str:
        """Return nothing: there is no stderr."""
        return ""

    def exit_status(self) -> int | None:
        """Return None: nothing is known of it."""
        return None


if __name__ == "__main__":
    simulated = SocketTransport(sys.argv[1])
    main.transports = lambda paths: {"ssh": simulated, "local": simulated}  # noqa: ARG005
    sys.exit(main.run(Paths.from_environment()))
