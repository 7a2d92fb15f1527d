"""The runtime's end of the socket to its shim, which carries JSON lines in both directions.

Training must never wait for orch. If the shim does not accept a message at once, a progress report is dropped, and an
error waits one second at most. Without a socket, every call silently does nothing.
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

    from orchestrator.protocol.runtime_lines import RuntimeLine

_PENDING_BYTES_MAX = 1 << 20


class Link:
    """The connection to the shim, or none: `Link(None)`."""

    def __init__(self, sock: socket.socket | None) -> None:
        self._sock = sock
        self._lock = threading.Lock()
        self._pending = b""

    @staticmethod
    def from_environment() -> Link:
        """Open the socket of ORCH_FD, and remove the variable: a child of the script must not get it."""
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

    def send(self, message: RuntimeLine, wait_s: float = 0.0) -> bool:
        """Send a message; wait `wait_s` at most for a slow reader. Return False if it was dropped. Never raises."""
        if self._sock is None:
            return False
        try:
            line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        except (TypeError, ValueError):
            return False
        with self._lock:
            self._flush(wait_s)
            # A line that was begun must be finished, or the reader loses its place. So only whole lines are dropped.
            if self._pending and (wait_s == 0.0 or len(self._pending) > _PENDING_BYTES_MAX):
                return False
            self._pending += line
            self._flush(wait_s)
            return True

    def say(self, kind: str, message: str) -> None:
        """Send a message to people, in the task's log and through the coordinator."""
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
                self._pending = b""  # the shim is gone; the thread that reads this socket notices it and acts
                return

    def orders(self) -> Iterator[dict[str, Any]]:
        """Yield the shim's orders until it closes the socket. Lines that hold no JSON object are skipped."""
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
