"""A transport in memory: programs are Python functions, and a host's link can be cut. For tests.

It passes the contract tests that ssh and local pass, so what is tested against it holds for them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from orchestrator.adapters.transport import Channel, ChannelClosed, OpenChannels, Tail
from orchestrator.core.errors import ConnectFailed, HostError
from orchestrator.core.plan import HostPlan

PIPE_BYTES = 64 * 1024

NOT_FOUND = 127
"""What a shell exits with for a command that it does not know."""


class Link:
    """The wire between us and one host. While it is cut nothing arrives, and nobody is told."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.cut = False


class Pipe:
    """Bytes in one direction, at most 64 KiB of them on the way. One reader, one writer."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._data = bytearray()
        self._ended = False
        self._broken = False

    def read(self, size: int) -> bytes:
        """What is there, at most `size` bytes; `b""` at the end. Waits for the first byte."""
        with self._link.changed:
            self._link.changed.wait_for(self._readable)
            if self._broken:
                return b""
            taken = bytes(self._data[:size])
            del self._data[:size]
            self._link.changed.notify_all()
            return taken

    def write(self, data: bytes) -> None:
        """Wait until all of it has been taken up. Raises ChannelClosed once the reader is gone."""
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
        """Wait, reading nothing, until the channel is closed."""
        with self._link.changed:
            self._link.changed.wait_for(lambda: self._broken)

    def end(self) -> None:
        """The writer is done; the reader gets what is still there."""
        with self._link.changed:
            self._ended = True
            self._link.changed.notify_all()

    def break_(self) -> None:
        """Both sides are done, at once."""
        with self._link.changed:
            self._broken = True
            self._link.changed.notify_all()

    def _readable(self) -> bool:
        return self._broken or (not self._link.cut and (bool(self._data) or self._ended))

    def _writable(self) -> bool:
        return self._broken or self._ended or len(self._data) < PIPE_BYTES


@dataclass(frozen=True, slots=True)
class FakeProcess:
    """What a program has: its ends of the pipes, and the host that it runs on."""

    host: HostPlan
    stdin: Pipe
    stdout: Pipe
    write_stderr: Callable[[bytes], None]


Program = Callable[[FakeProcess], int]
"""Runs in a thread of its own; returns the exit status. ChannelClosed ends it, as SIGPIPE would."""


class FakeTransport:
    """Hosts in memory.

    Args:
        programs: By the exact text of the command. Any other command is not found, as a shell would say.
    """

    def __init__(self, programs: Mapping[str, Program]) -> None:
        self._programs = programs
        self._links: dict[str, Link] = {}
        self._refusals: dict[str, HostError] = {}
        self._channels = OpenChannels()

    def open(self, host: HostPlan, command: str) -> Channel:
        """Start the program of that name. Raises what `refuse` was given, or ConnectFailed while cut."""
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
        """Stop everything on the wire, silently; programs go on."""
        self._set_cut(host, True)

    def heal(self, host: HostPlan) -> None:
        """Let pass again what waits, and what follows."""
        self._set_cut(host, False)

    def refuse(self, host: HostPlan, error: HostError | None) -> None:
        """Let every open() to this host raise `error`; None to allow it again."""
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
    """One program that runs. See transport.Channel."""

    def __init__(self, host: HostPlan, link: Link, program: Program) -> None:
        self._stdin, self._stdout = Pipe(link), Pipe(link)
        self._tail = Tail()
        self._status: int | None = None
        self._finished = threading.Event()
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

    def write(self, data: bytes) -> None:
        self._stdin.write(data)

    def close(self) -> None:
        self._stdin.break_()
        self._stdout.break_()
        self.forget()

    def stderr_tail(self) -> str:
        return self._tail.text()

    def exit_status(self) -> int | None:
        return self._status if self._finished.is_set() else None


def _not_found(process: FakeProcess) -> int:
    process.write_stderr(b"sh: 1: command not found\n")
    return NOT_FOUND
