"""A TCP proxy that makes a connection bad: with delay, loss, a slow server, and resets.

Not every kernel has `tc netem`, and this needs no root. Lost data arrives late and delays everything behind it, as
TCP's retransmissions do for a reader of the stream.
"""

from __future__ import annotations

import contextlib
import queue
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

CHUNK_BYTES = 4096
RETRANSMIT_S = 0.25
"""The least extra delay of a lost segment; it doubles each time the segment is lost again."""


@dataclass(frozen=True, slots=True)
class Wire:
    """How bad the connection is."""

    one_way_s: float = 0.0
    loss: float = 0.0
    hold_s: float = 0.0
    """How long a new connection waits for an answer. It is accepted at once."""
    resets: Sequence[int] = ()
    """After how many bytes from the client the n-th connection is reset; later connections are not."""


class Proxy:
    """Listens on `address`, on a free port, until it is closed."""

    def __init__(self, target: tuple[str, int], wire: Wire, address: str = "127.0.0.1") -> None:
        self._target = target
        self._wire = wire
        self._random = random.Random(7)
        self._closed = threading.Event()
        self._connections: list[_Connection] = []
        self._accepted = 0
        self.resets = 0
        self._server = socket.create_server((address, 0))
        self.address, self.port = self._server.getsockname()[:2]
        _start(self._accept)

    def close(self) -> None:
        """Close the proxy and all connections."""
        self._closed.set()
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for connection in self._connections:
            connection.close()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            _start(self._serve, client, self._accepted)
            self._accepted += 1

    def _serve(self, client: socket.socket, number: int) -> None:
        self._closed.wait(self._wire.hold_s)
        try:
            host = socket.create_connection(self._target, timeout=10.0)
        except OSError:
            client.close()
            return
        host.settimeout(None)
        connection = _Connection(client, host)
        self._connections.append(connection)
        if self._closed.is_set():
            connection.close()
        limit = self._wire.resets[number] if number < len(self._wire.resets) else None
        _start(self._carry, connection, host, client, None)
        self._carry(connection, client, host, limit)

    def _carry(
        self, connection: _Connection, source: socket.socket, target: socket.socket, limit: int | None
    ) -> None:
        """Forward bytes until the end of the stream, or `limit` bytes. Each piece is delayed; the order is kept."""
        line: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
        _start(_deliver, line, target)
        carried, due = 0, 0.0
        while limit is None or carried < limit:
            try:
                data = source.recv(CHUNK_BYTES)
            except OSError:
                data = b""
            carried += len(data)
            due = max(due, time.monotonic() + self._wire.one_way_s + self._lost_s())
            line.put((due, data))
            if not data:
                return
        self.resets += 1
        connection.reset()
        line.put((0.0, b""))

    def _lost_s(self) -> float:
        waited, again = 0.0, RETRANSMIT_S
        while self._random.random() < self._wire.loss:
            waited, again = waited + again, 2 * again
        return waited


@dataclass(frozen=True, slots=True)
class _Connection:
    client: socket.socket
    host: socket.socket

    def close(self) -> None:
        for sock in (self.client, self.host):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def reset(self) -> None:
        """Reset both ends, so that each reads ECONNRESET."""
        for sock in (self.client, self.host):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RD)  # wakes its reader; the last close sends the reset
            sock.close()


def _deliver(line: queue.SimpleQueue[tuple[float, bytes]], target: socket.socket) -> None:
    while True:
        due, data = line.get()
        time.sleep(max(0.0, due - time.monotonic()))
        with contextlib.suppress(OSError):
            if data:
                target.sendall(data)
                continue
            target.shutdown(socket.SHUT_WR)
        return


def _start(work: Callable[..., None], *arguments: object) -> None:
    threading.Thread(target=work, args=arguments, name="proxy", daemon=True).start()
