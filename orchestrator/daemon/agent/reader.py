"""Reads parts of snapshots in a process of its own, which serves many of them: a fork for each would cost more than the
reading. A disk that hangs hangs that process, and not the heartbeats.

The agent writes requests as JSON lines and gets the answers in their order: a kind and a length, and then the bytes, or
an error as JSON.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from collections import deque

from orchestrator.adapters.host.hostdir import HostFault, fault_of
from orchestrator.daemon.agent.streams import READ, Loop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

    Done = Callable[[bytes, HostFault | None], None]

IDLE_S = 10.0
"""After this time without a request the process ends."""

_HEADER = struct.Struct(">cI")
_DATA, _ERROR = b"d", b"e"
_READ_BYTES = 1 << 18
_KILL = 9


class Reader:
    """The process, while there is something to read. `read_part` does the reading, in that process."""

    def __init__(self, loop: Loop, read_part: Callable[..., bytes], deadline_s: float) -> None:
        self._loop = loop
        self._read_part = read_part
        self._deadline_s = deadline_s
        self._pid = 0
        self._socket: socket.socket | None = None
        self._buffer = bytearray()
        self._waiting: deque[tuple[Done, float]] = deque()
        self._used_at = 0.0

    def read(self, where: tuple[Any, ...], done: Done) -> None:
        """Read a part; `done` gets its bytes, or the fault. Raises OSError where no process can be made."""
        self._used_at = time.monotonic()
        if self._socket is None:
            self._begin()
        assert self._socket is not None
        self._waiting.append((done, self._used_at + self._deadline_s))
        try:
            self._socket.sendall(json.dumps(where).encode() + b"\n")
        except OSError:  # it has died, or hangs with its socket full of requests
            self._fail("the process that reads snapshots takes no requests")

    def end(self) -> None:
        """End the process. The agent ends, and nothing will read its answers."""
        if self._socket is not None:
            _kill(self._pid)

    def _begin(self) -> None:
        ours, theirs = socket.socketpair()
        self._pid = os.fork()
        if self._pid == 0:
            _serve(theirs, self._read_part)
        theirs.close()
        ours.setblocking(False)
        self._socket = ours
        self._buffer.clear()
        self._loop.watch(ours.fileno(), READ, lambda _events: self._hear())
        self._look()

    def _hear(self) -> None:
        if self._socket is None:
            return
        try:
            data = self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._fail("the process that reads snapshots has ended")
            return
        self._buffer += data
        while len(self._buffer) >= _HEADER.size:
            kind, length = _HEADER.unpack_from(self._buffer)
            end = _HEADER.size + length
            if len(self._buffer) < end:
                return
            body = bytes(memoryview(self._buffer)[_HEADER.size : end])
            del self._buffer[:end]
            self._used_at = time.monotonic()
            done, _ = self._waiting.popleft()
            done(*((body, None) if kind == _DATA else (b"", _fault(body))))

    def _look(self) -> None:
        """End the process if it hangs, or has nothing to do."""
        if self._socket is None:
            return
        now = time.monotonic()
        if self._waiting and now >= self._waiting[0][1]:
            hint = "a shared directory may hang; see whether `ls` works there"
            self._fail("the reading of the snapshot did not end in time and was killed", "timeout", hint)
        elif not self._waiting and now - self._used_at >= IDLE_S:
            self._close()
        else:
            self._loop.after(1.0, self._look)

    def _fail(self, why: str, code: str = "job-failed", hint: str | None = None) -> None:
        self._close()
        waiting, self._waiting = self._waiting, deque()
        for done, _ in waiting:
            done(b"", HostFault(code, why, hint))

    def _close(self) -> None:
        if self._socket is not None:
            self._loop.forget(self._socket.fileno())
            self._socket.close()
            self._socket = None
            _kill(self._pid)  # the agent reaps it with its other children


def _fault(body: bytes) -> HostFault:
    error = json.loads(body)
    return HostFault(error["code"], error["message"], error.get("hint"))


def _serve(requests: socket.socket, read_part: Callable[..., bytes]) -> NoReturn:
    """Answer requests until the agent closes the socket. It must not hold the agent's descriptors."""
    try:
        os.setpgid(0, 0)
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        os.dup2(requests.fileno(), 3)
        os.closerange(4, 65536)
        with os.fdopen(os.dup(3), "rb") as lines:
            for line in lines:
                kind, body = _answer(line, read_part)
                for data in (_HEADER.pack(kind, len(body)), body):
                    view = memoryview(data)
                    while view:
                        view = view[os.write(3, view) :]
    finally:
        os._exit(0)


def _answer(line: bytes, read_part: Callable[..., bytes]) -> tuple[bytes, bytes]:
    try:
        return _DATA, read_part(*json.loads(line))
    except HostFault as e:
        error = e.to_json()
    except OSError as e:
        error = fault_of(e).to_json()
    except Exception as e:
        error = {"code": "internal", "message": f"{type(e).__name__}: {e}", "hint": None}
    return _ERROR, json.dumps(error).encode()


def _kill(pid: int) -> None:
    """Kill its process group. It is not reaped before the agent's next heartbeat, so the pid is still its own."""
    try:
        os.killpg(pid, _KILL)
    except (ProcessLookupError, PermissionError):
        return
