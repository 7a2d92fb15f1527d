"""A transport in memory, for tests: programs are Python functions, and a host's link can be cut.

It passes the same contract tests as ssh and local, so a test against it also holds for them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from orchestrator.core.errors import ConnectFailed, HostError
from orchestrator.core.plan import HostPlan
from orchestrator.head.reach.transport import Channel, ChannelClosed, OpenChannels, Receiver, Tail

PIPE_BYTES = 64 * 1024

NOT_FOUND = 127
"""The exit status of a shell for a command that it does not find."""


class Link:
    """The wire between the head and one host. While it is cut, nothing arrives and neither side is told."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.cut = False


class Pipe:
    """A stream of bytes in one direction, with one reader and one writer. It buffers at most 64 KiB."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._data = bytearray()
        self._ended = False
        self._broken = False

    def read(self, size: int) -> bytes:
        """Wait for the first byte, then return what has arrived, at most `size` bytes; `b""` at the end."""
        with self._link.changed:
            self._link.changed.wait_for(self._readable)
            if self._broken:
                return b""
            taken = bytes(self._data[:size])
            del self._data[:size]
            self._link.changed.notify_all()
            return taken

    def write(self, data: bytes) -> None:
        """Wait until the buffer has accepted all of `data`.

        Raises:
            ChannelClosed: the reader is gone.
        """
        rest = memoryview(data)
        while rest:
            with self._link.changed:
                self._link.changed.wait_for(self._writable)
                if self._broken or self._ended:
                    raise ChannelClosed("the other end is gone")
                room = PIPE_BYTES - len(self._data)
                self._data += rest[:room]
                rest = rest[room:]
                self._link.changed.notify_all()

    def wait_broken(self) -> None:
        """Wait until the channel is closed, and read nothing meanwhile."""
        with self._link.changed:
            self._link.changed.wait_for(lambda: self._broken)

    def end(self) -> None:
        """End the stream on the writer's side. The reader still gets what is buffered."""
        with self._link.changed:
            self._ended = True
            self._link.changed.notify_all()

    def break_(self) -> None:
        """End the stream for both sides at once. What is buffered is lost."""
        with self._link.changed:
            self._broken = True
            self._link.changed.notify_all()

    def _readable(self) -> bool:
        return self._broken or (not self._link.cut and (bool(self._data) or self._ended))

    def _writable(self) -> bool:
        return self._broken or self._ended or len(self._data) < PIPE_BYTES


@dataclass(frozen=True, slots=True)
class FakeProcess:
    """What a program gets: its ends of the pipes, and the host that it runs on."""

    host: HostPlan
    stdin: Pipe
    stdout: Pipe
    write_stderr: Callable[[bytes], None]


Program = Callable[[FakeProcess], int]
"""A program runs in a thread of its own and returns its exit status. ChannelClosed ends it, as SIGPIPE would."""


class FakeTransport:
    """Hosts in memory.

    Args:
        programs: The programs by the exact text of their command. Any other command is "not found".
    """

    def __init__(self, programs: Mapping[str, Program]) -> None:
        self._programs = programs
        self._links: dict[str, Link] = {}
        self._refusals: dict[str, HostError] = {}
        self._channels = OpenChannels()

    def open(self, host: HostPlan, command: str) -> Channel:
        """Start the program that `command` names.

        Raises:
            HostError: the error that `refuse` was given.
            ConnectFailed: the link to the host is cut.
        """
        if host.name in self._refusals:
            raise self._refusals[host.name]
        link = self._link(host)
        if link.cut:
            raise ConnectFailed(host.name, "does not answer", hint="heal() it")
        channel = FakeChannel(host, link, self._programs.get(command, _not_found))
        channel.forget = self._channels.add(host, channel)
        return channel

    def close(self, host: HostPlan) -> None:
        """Close every channel to this host that is still open."""
        self._channels.close(host)

    def cut(self, host: HostPlan) -> None:
        """Hold back everything on the wire. Neither side is told, and programs go on."""
        self._set_cut(host, True)

    def heal(self, host: HostPlan) -> None:
        """Deliver what the cut held back, and everything that follows."""
        self._set_cut(host, False)

    def refuse(self, host: HostPlan, error: HostError | None) -> None:
        """Make every open() to this host raise `error`. None allows it again."""
        if error is None:
            self._refusals.pop(host.name, None)
        else:
            self._refusals[host.name] = error

    def _link(self, host: HostPlan) -> Link:
        return self._links.setdefault(host.name, Link())

    def _set_cut(self, host: HostPlan, cut: bool) -> None:
        link = self._link(host)
        with link.changed:
            link.cut = cut
            link.changed.notify_all()


class FakeChannel:
    """A channel to one running program. See transport.Channel."""

    def __init__(self, host: HostPlan, link: Link, program: Program) -> None:
        self._stdin, self._stdout = Pipe(link), Pipe(link)
        self._tail = Tail()
        self._status: int | None = None
        self._finished = threading.Event()
        self._closed = threading.Event()
        self.forget: Callable[[], None] = lambda: None
        process = FakeProcess(host, self._stdin, self._stdout, self._tail.add)
        threading.Thread(target=self._run, args=(program, process), daemon=True).start()

    def _run(self, program: Program, process: FakeProcess) -> None:
        try:
            self._status = program(process)
        except ChannelClosed:
            self._status = None
        finally:
            self._finished.set()
            self._stdout.end()
            self._stdin.break_()

    def read(self, size: int) -> bytes:
        return self._stdout.read(size)

    def feed(self, receive: Receiver) -> None:
        threading.Thread(target=self._feed, args=(receive,), name="fake-reader", daemon=True).start()

    def _feed(self, receive: Receiver) -> None:
        while data := self._stdout.read(PIPE_BYTES):
            self._closed.wait(receive(data))
        receive(b"")

    def write(self, data: bytes) -> None:
        self._stdin.write(data)

    def close(self) -> None:
        self._closed.set()
        self._stdin.break_()
        self._stdout.break_()
        self.forget()

    @property
    def is_closed(self) -> bool:
        """Return whether close() was called."""
        return self._closed.is_set()

    def stderr_tail(self) -> str:
        return self._tail.text()

    def exit_status(self) -> int | None:
        return self._status if self._finished.is_set() else None


def _not_found(process: FakeProcess) -> int:
    process.write_stderr(b"sh: 1: command not found\n")
    return NOT_FOUND
