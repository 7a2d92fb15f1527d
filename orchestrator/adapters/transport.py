"""How a command is started on a host and talked with: one interface for SSH, this machine, and the fake.

All calls block, in threads of the daemon. The one thread that this room has bounds calls that know no bound: alarm.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from orchestrator.core.plan import HostPlan

STDERR_TAIL_BYTES = 4096
"""Enough for the last lines of a traceback; a host that writes more to stderr costs no memory."""

EXIT_STATUS_WAIT_S = 2.0
"""An exit status follows the end of the output by milliseconds; longer means that none will come."""


class ChannelClosed(OSError):
    """Nothing more can be written: the other end is gone, or close() was called."""


class Channel(Protocol):
    """The stdin and stdout of one command on a host.

    One thread reads, another may write, and any thread may close.
    """

    def read(self, size: int) -> bytes:
        """What is there, at most `size` bytes; waits for the first. `b""` at the end, or once closed.

        Whoever opens a channel must keep reading it: a read also takes in what comes on stderr.
        """

    def write(self, data: bytes) -> None:
        """Wait until all of `data` is on its way. Raises ChannelClosed."""

    def close(self) -> None:
        """Drop the connection at once; wakes a blocked read and a blocked write. May be called twice."""

    def stderr_tail(self) -> str:
        """The last 4 KiB that the command wrote to stderr."""

    def exit_status(self) -> int | None:
        """The command's exit code; None while it runs, and where it is unknown or was a signal.

        After the end of the output it waits up to 2 s for it.
        """


class Transport(Protocol):
    """Opens channels to hosts."""

    def open(self, host: HostPlan, command: str) -> Channel:
        """Start `command` by the host's shell. Raises the HostErrors of `core.errors`.

        `command` is a fixed text of ours: nothing that a user wrote may be in it.
        """

    def close(self, host: HostPlan) -> None:
        """Close every channel to this host that is still open."""


class Tail:
    """The last bytes of a stream."""

    def __init__(self, limit: int = STDERR_TAIL_BYTES) -> None:
        self._limit = limit
        self._kept = b""

    def add(self, data: bytes) -> None:
        self._kept = (self._kept + data)[-self._limit :]

    def text(self) -> str:
        return self._kept.decode("utf-8", "replace")


class OpenChannels:
    """What is open to which host, so that `Transport.close` can end it."""

    def __init__(self) -> None:
        self._by_host: dict[str, set[Channel]] = {}

    def add(self, host: HostPlan, channel: Channel) -> Callable[[], None]:
        """Remember `channel`; the callable forgets it again."""
        # Single dict and set operations: atomic under the interpreter's lock, so none of our own.
        channels = self._by_host.setdefault(host.name, set())
        channels.add(channel)
        return lambda: channels.discard(channel)

    def close(self, host: HostPlan) -> None:
        for channel in list(self._by_host.get(host.name, ())):
            channel.close()
