"""Unix sockets that nobody else can open. Standard library only: the head and hosts use it."""

from __future__ import annotations

import os
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket


def peer(connection: socket.socket) -> tuple[int, int]:
    """Return the pid and the user at the other end, as the kernel knows them. Raises OSError."""
    from socket import SO_PEERCRED, SOL_SOCKET

    pid, uid, _ = struct.unpack("3i", connection.getsockopt(SOL_SOCKET, SO_PEERCRED, struct.calcsize("3i")))
    return pid, uid


def listen(listener: socket.socket, path: str, backlog: int) -> None:
    """Bind a Unix socket with mode 0600, in the place of one that is left over, and listen on it.

    The mode is there from the start: between a bind and a chmod, others could connect.
    """
    if os.path.lexists(path):
        os.unlink(path)
    before = os.umask(0o177)
    try:
        listener.bind(path)
    finally:
        os.umask(before)
    listener.listen(backlog)
