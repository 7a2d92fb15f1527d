"""Reads from a connection what has come, in one piece: paramiko asks the kernel twice for each packet.

That is a hundred thousand times for a checkpoint of a gigabyte, and each time another thread takes the interpreter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_LEAST_BYTES = 1 << 12
"""Asked for while little comes. Each connection that is silent holds a buffer of that size."""
MOST_BYTES = 1 << 18
_NOTHING = memoryview(b"")


class ReadAhead:
    """A socket for paramiko's packets, of one reader."""

    def __init__(self, sock: Any) -> None:
        self._sock = sock
        self._held = _NOTHING
        self._size = _LEAST_BYTES
        self.about_to_wait: Callable[[], object] = lambda: None
        """Called by the reader when it has handled all that came, before it asks for more."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def recv(self, size: int) -> bytes:
        """Return at most `size` bytes; none at the end. Raises what the socket raises, and keeps what it holds."""
        if not self._held:
            self.about_to_wait()
            data = self._sock.recv(max(size, self._size))
            if len(data) >= self._size:
                self._size = min(self._size * 8, MOST_BYTES)
            elif len(data) < self._size // 16:
                self._size = _LEAST_BYTES
            if len(data) <= size:
                return bytes(data)
            self._held = memoryview(data)
        taken = bytes(self._held[:size])
        self.skip(size)
        return taken

    @property
    def held(self) -> memoryview:
        """What was read and not taken yet."""
        return self._held

    def skip(self, size: int) -> None:
        """Take the first of what is held."""
        # An empty queue must not keep its buffer: it may take long until more data comes.
        self._held = self._held[size:] if size < len(self._held) else _NOTHING
