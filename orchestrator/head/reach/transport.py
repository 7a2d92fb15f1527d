"""The interface to start a command on a host, and to read and write its streams: by SSH, locally, and by the fake.

All calls block except `feed`; the coordinator makes them in threads of its own. The threads of this room are those of
alarm.py, which limits calls that accept no timeout, of reader.py, and paramiko's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from orchestrator.core.plan import HostPlan

STDERR_TAIL_BYTES = 4096
"""How much of stderr is kept: enough for the last lines of a traceback, however much a host writes."""

EXIT_STATUS_WAIT_S = 2.0
"""How long to wait for an exit status after the end of the output. It normally follows within milliseconds."""


class ChannelClosed(OSError):
    """Nothing more can be written, because the other end is gone or close() was called."""


Receiver = Callable[[bytes], float]
"""Called with the data that a channel has read; `b""` is the end. It does not block and raises nothing.

It returns for how many seconds to read nothing of that channel, so that a host that sends too much fills its own
channel, and not the memory of this process.
"""


class Channel(Protocol):
    """The stdin and stdout of one command on a host.

    One thread reads, another may write, and any thread may close.
    """

    def read(self, size: int) -> bytes:
        """Wait for the first byte, then return what has arrived, at most `size` bytes.

        Returns `b""` at the end of the output, and once the channel is closed. An open channel must be read all the
        time, because read() also drains stderr.
        """

    def feed(self, receive: Receiver) -> None:
        """Call `receive` with all further data, in the thread that reads the connection, instead of read().

        The calls never overlap. The last one is `receive(b"")`: after the end of the output, or after close().
        """

    def write(self, data: bytes) -> None:
        """Wait until all of `data` has been handed over.

        Raises:
            ChannelClosed: the other end is gone, or the channel is closed.
        """

    def close(self) -> None:
        """Drop the channel at once, and wake a blocked read and a blocked write. Calling it again does nothing."""

    def stderr_tail(self) -> str:
        """Return the last 4 KiB that the command wrote to stderr."""

    def exit_status(self) -> int | None:
        """Return the command's exit code. None: it still runs, a signal ended it, or the code is not known.

        After the end of the output, wait up to 2 s for the code.
        """


class Transport(Protocol):
    """Opens channels to hosts."""

    def open(self, host: HostPlan, command: str) -> Channel:
        """Start `command` with the host's shell.

        `command` must be a constant of ours: text that a user wrote must not reach a shell.

        Raises:
            HostError: the command could not be started; `core.errors` has its kinds.
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
    """The open channels by host, so that `Transport.close` can close them."""

    def __init__(self) -> None:
        self._by_host: dict[str, set[Channel]] = {}

    def add(self, host: HostPlan, channel: Channel) -> Callable[[], None]:
        """Remember `channel`, and return a callable that forgets it again."""
        # Each step is one dict or set operation, which the interpreter's lock makes atomic: no lock is needed.
        channels = self._by_host.setdefault(host.name, set())
        channels.add(channel)
        return lambda: channels.discard(channel)

    def close(self, host: HostPlan) -> None:
        for channel in list(self._by_host.get(host.name, ())):
            channel.close()
