"""The runtime's end of the socket to its shim: JSON lines both ways.

Training must never wait for us: what the shim does not take at once is dropped (progress) or waits a second
at most (errors). Where there is no socket, everything is silently nothing.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_PENDING_BYTES_MAX = 1 << 20


class Link:
    """One socket, or none (`Link(None)`)."""

    def __init__(self, sock: socket.socket | None) -> None:
        self._sock = sock
        self._lock = threading.Lock()
        self._pending = b""

    @staticmethod
    def from_environment() -> Link:
        """Attach to ORCH_FD, and hide it: a child of the script must neither speak nor hold the line open."""
        text = os.environ.pop("ORCH_FD", "")
        if not text.isdecimal():
            return Link(None)
        try:
            os.set_inheritable(int(text), False)
            return Link(socket.socket(fileno=int(text)))
        except OSError:
            return Link(None)

    @property
    def attached(self) -> bool:
        return self._sock is not None

    def send(self, message: dict[str, Any], wait_s: float = 0.0) -> bool:
        """Send, waiting `wait_s` at most for a slow reader. False where it was dropped. Never raises."""
        if self._sock is None:
            return False
        try:
            line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        except (TypeError, ValueError):
            return False
        with self._lock:
            self._flush(wait_s)
            # A line begun must be finished, or the reader loses its place; so drop before, never within.
            if self._pending and (wait_s == 0.0 or len(self._pending) > _PENDING_BYTES_MAX):
                return False
            self._pending += line
            self._flush(wait_s)
            return True

    def say(self, kind: str, message: str) -> None:
        """To the task's log and to the coordinator."""
        print(f"orch: {message}", file=sys.stderr, flush=True)
        self.send({"say": {"kind": kind, "message": message}}, wait_s=1.0)

    def _flush(self, wait_s: float) -> None:
        deadline = time.monotonic() + wait_s
        while self._pending and self._sock is not None:
            try:
                sent = self._sock.send(self._pending, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                self._pending = self._pending[sent:]
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    return
                time.sleep(0.005)
            except OSError:
                self._pending = b""  # the shim is gone; the reader of this socket sees it and acts
                return

    def orders(self) -> Iterator[dict[str, Any]]:
        """What the shim asks, in order, until it closes the line. Lines that are no object are skipped."""
        if self._sock is None:
            return
        buffer = b""
        while True:
            try:
                data = self._sock.recv(65536)
            except InterruptedError:
                continue
            except OSError:
                return
            if not data:
                return
            *lines, buffer = (buffer + data).split(b"\n")
            for line in lines:
                try:
                    order = json.loads(line)
                except ValueError:
                    continue
                if isinstance(order, dict):
                    yield order
