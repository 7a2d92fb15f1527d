"""Reads or writes parts of snapshots in a process of its own, which serves many of them: a fork for each would cost
more than the reading. A disk that hangs hangs that process, and not the heartbeats.

The agent writes requests as JSON lines, each with the number of a slot of the memory that both share; what is to be
written is in the slot. It gets the answers in their order: a kind and a number; or an error as JSON. What was read is
in the slot, which is used again once the bytes have left for the head, so nobody copies them.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from collections import deque

from orchestrator.both.hostdir import HostFault, fault_of
from orchestrator.host.agent.jobs import kill_group, stand_alone
from orchestrator.host.agent.streams import READ, Loop
from orchestrator.protocol.channel import BLOB_BYTES_MAX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

    DoPart = Callable[..., int]
    Done = Callable[[memoryview, HostFault | None, Callable[[], None]], None]

IDLE_S = 10.0
"""After this time without a request the process ends."""

SLOTS = 18
"""How many parts are read or written, or wait to be sent, at once. The head asks for fewer; further requests wait."""

_HEADER = struct.Struct(">cI")
_DATA, _ERROR = b"d", b"e"
_READ_BYTES = 1 << 16


class Slots:
    """The memory that the agent shares with one such process."""

    def __init__(self) -> None:
        from mmap import mmap

        self._memory = memoryview(mmap(-1, SLOTS * BLOB_BYTES_MAX))
        self.free = list(range(SLOTS))

    def room(self, number: int) -> memoryview:
        """Return a slot's memory."""
        return self._memory[number * BLOB_BYTES_MAX : (number + 1) * BLOB_BYTES_MAX]


class Parts:
    """The process, while there is something to do. `do_part` does it, in that process.

    It is called with a part's memory, and then with the arguments of `read` or `write`. It returns a number: for a part
    that is read, how many bytes it has.

    Args:
        loop: the agent's.
        do_part: see above.
        deadline_s: how long a part may take.
        what: "reading" or "writing", for the text of an error.
    """

    def __init__(self, loop: Loop, do_part: DoPart, deadline_s: float, what: str = "reading") -> None:
        self._loop = loop
        self._do_part = do_part
        self._what = what
        self._deadline_s = deadline_s
        self._pid = 0
        self._socket: socket.socket | None = None
        self._slots: Slots | None = None
        self._buffer = bytearray()
        self._asked: deque[tuple[tuple[Any, ...], bytes, Done]] = deque()
        """Requests for which there is no slot yet."""
        self._waiting: deque[tuple[Done, float, int]] = deque()
        """Requests that were sent, until when they may take, and their slots."""
        self._used_at = 0.0

    def read(self, where: tuple[Any, ...], done: Done) -> None:
        """Read a part. Raises OSError if no process can be made.

        `done` gets its bytes, or the fault, and what to call once the bytes are not needed any more.
        """
        self._add(where, b"", done)

    def write(
        self, where: tuple[Any, ...], data: bytes, done: Callable[[int, HostFault | None], None]
    ) -> None:
        """Write a part. Raises OSError if no process can be made.

        `do_part` gets the length of the data before the other arguments. `done` gets its number, or the fault.
        """

        def written(room: memoryview, fault: HostFault | None, free: Callable[[], None]) -> None:
            if fault is None:
                free()
            done(len(room), fault)

        self._add((len(data), *where), data, written)

    def _add(self, where: tuple[Any, ...], data: bytes, done: Done) -> None:
        self._used_at = time.monotonic()
        if self._socket is None:
            slots = Slots()
            ours, theirs = socket.socketpair()
            self._pid = os.fork()
            if self._pid == 0:
                _serve(theirs, slots, self._do_part)
            theirs.close()
            ours.setblocking(False)
            self._socket, self._slots = ours, slots
            self._buffer.clear()
            self._loop.watch(ours.fileno(), READ, lambda _events: self._hear())
            self._loop.after(1.0, self._check)  # not now: it would end what has not been asked yet
        self._asked.append((where, data, done))
        self._ask()

    def end(self) -> None:
        """End the process. The agent ends, and nothing will read its answers."""
        if self._socket is not None:
            kill_group(self._pid)

    def _ask(self) -> None:
        """Send as many requests as there are free slots."""
        while self._socket is not None and self._slots is not None and self._asked and self._slots.free:
            (where, data, done), slot = self._asked.popleft(), self._slots.free.pop()
            self._slots.room(slot)[: len(data)] = data
            self._waiting.append((done, time.monotonic() + self._deadline_s, slot))
            try:
                self._socket.sendall(json.dumps((slot, *where)).encode() + b"\n")
            except OSError:  # it has died, or hangs with its socket full of requests
                self._fail(f"the {self._what} of the snapshot: its process takes no requests")

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
            self._fail(f"the {self._what} of the snapshot: its process has ended")
            return
        self._buffer += data
        while len(self._buffer) >= _HEADER.size:
            kind, length = _HEADER.unpack_from(self._buffer)
            end = _HEADER.size + (length if kind == _ERROR else 0)
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[_HEADER.size : end])
            del self._buffer[:end]
            self._answered(length, HostFault(**json.loads(body)) if kind == _ERROR else None)

    def _answered(self, length: int, fault: HostFault | None) -> None:
        slots = self._slots
        assert slots is not None
        self._used_at = time.monotonic()
        done, _, slot = self._waiting.popleft()

        def free() -> None:
            slots.free.append(slot)
            self._ask()

        if fault is not None:
            free()
        done(slots.room(slot)[: 0 if fault else length], fault, free)

    def _check(self) -> None:
        """End the process if it hangs, or has nothing to do."""
        if self._socket is None:
            return
        now = time.monotonic()
        if self._waiting and now >= self._waiting[0][1]:
            hint = "a shared directory may hang; see whether `ls` works there"
            self._fail(
                f"the {self._what} of the snapshot did not end in time and was killed", "timeout", hint
            )
        elif not self._waiting and not self._asked and now - self._used_at >= IDLE_S:
            self._close()
        else:
            self._loop.after(1.0, self._check)

    def _fail(self, why: str, code: str = "job-failed", hint: str | None = None) -> None:
        self._close()
        failed = [*(done for done, _, _ in self._waiting), *(done for _, _, done in self._asked)]
        self._waiting.clear()
        self._asked.clear()
        for done in failed:
            done(memoryview(b""), HostFault(code, why, hint), lambda: None)

    def _close(self) -> None:
        if self._socket is not None:
            self._loop.forget(self._socket.fileno())
            self._socket.close()
            self._socket = self._slots = None
            self._buffer.clear()  # it may be closed while its answers are handed on
            kill_group(self._pid)  # the agent reaps it with its other children


def _serve(requests: socket.socket, slots: Slots, do_part: DoPart) -> NoReturn:
    """Answer requests until the agent closes the socket. It must not hold the agent's descriptors."""
    try:
        stand_alone(requests.fileno())
        with os.fdopen(os.dup(3), "rb") as lines:
            for line in lines:
                view = memoryview(_answer(line, slots, do_part))
                while view:
                    view = view[os.write(3, view) :]
    finally:
        os._exit(0)


def _answer(line: bytes, slots: Slots, do_part: DoPart) -> bytes:
    try:
        slot, *where = json.loads(line)
        return _HEADER.pack(_DATA, do_part(slots.room(slot), *where))
    except Exception as e:
        body = json.dumps(fault_of(e).to_json()).encode()
    return _HEADER.pack(_ERROR, len(body)) + body
