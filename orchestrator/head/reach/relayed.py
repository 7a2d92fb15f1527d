"""Channels through an engine's own client (srun, kubectl exec), which runs a relay beside the keeper of a host.

One transport for all engines. An `Engine` knows how to call its client, and the state of an allocation. The output and
the exit code of a client differ between engines. So only the relay reports whether a channel is open, and how its
command ended, in marked lines on stderr.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import subprocess
import time
from typing import Protocol

from orchestrator.core.errors import AllocationGone, ConnectFailed
from orchestrator.core.plan import HostPlan
from orchestrator.head.reach.local import Children, LocalChannel
from orchestrator.head.reach.transport import EXIT_STATUS_WAIT_S, STDERR_TAIL_BYTES, Channel, Tail

OPEN_S = 30.0
"""How long a client may take until the relay reports."""

_MARK_LINE_BYTES = 512
_READ_BYTES = 1 << 16
_CLOSING_S = 5.0


class Engine(Protocol):
    """The parts that differ between engines."""

    def client(self, host: HostPlan, relay: list[str]) -> list[str]:
        """Return the command line that runs `relay` (words behind Python and bundle) on the host, stdio attached."""

    def ended(self, host: HostPlan) -> str | None:
        """Return why the host's allocation is gone, as a sentence's end; None while it is there, or that is unknown."""

    def waits(self, host: HostPlan) -> str | None:
        """Return why the engine has not started the host, as a sentence; None if it has, or that is unknown.

        May raise HostUnfit where it never will, unless a person acts.
        """


class RelayTransport(Children):
    """Opens channels by an engine's client. See transport.Transport."""

    def __init__(self, engine: Engine, *, open_s: float = OPEN_S) -> None:
        super().__init__()
        self._engine = engine
        self._open_s = open_s

    def before(self, host: HostPlan, boot_id: str) -> str:  # noqa: ARG002
        """Return how an earlier boot of the host has ended, for people; empty if nothing is known of it."""
        return ""

    def open(self, host: HostPlan, command: str) -> Channel:
        """Start `command` with /bin/sh on the host, as a child of its keeper.

        Raises:
            AllocationGone: the engine says that the host is not ours any more.
            ConnectFailed: the relay did not report. The output of the client may say why.
            HostUnfit: this machine cannot start the engine's client, or the engine will never start the host.
        """
        mark = f"orch-relay-{secrets.token_hex(8)}"
        words = self._engine.client(host, ["relay", host.allocation, mark, command])
        child = self.start(host, words)
        stderr = _Said(mark)
        try:
            problem = stderr.wait_open(child, time.monotonic() + self._open_s)
        except BaseException:
            _drop(child)
            raise
        if problem is not None:
            _drop(child)
            why = self._engine.ended(host)
            if why is not None:
                raise AllocationGone(host.name, why)
            raise ConnectFailed(host.name, f"not connected: {self._engine.waits(host) or problem}")
        return self.opened(host, RelayedChannel(child, stderr))


class RelayedChannel(LocalChannel):
    """The pipes of a client. The relay's own lines are taken out of stderr."""

    def __init__(self, child: subprocess.Popen[bytes], stderr: _Said) -> None:
        super().__init__(child, tail=stderr)
        self._said = stderr

    def exit_status(self) -> int | None:
        """Return the exit code that the relay reported. Without one, the connection broke."""
        if self._ended:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(EXIT_STATUS_WAIT_S)
        self.stderr_tail()
        return self._said.exit_code()


class _Said(Tail):
    """The last bytes of stderr, without the relay's lines."""

    def __init__(self, mark: str) -> None:
        # Until the channel is open a whole read is kept: much output of the command may follow the relay's line.
        super().__init__(STDERR_TAIL_BYTES + _MARK_LINE_BYTES + _READ_BYTES)
        self._mark = mark.encode()

    def wait_open(self, child: subprocess.Popen[bytes], deadline: float) -> str | None:
        """Read until the relay has reported that the keeper is there. Return None then, else what is known instead."""
        assert child.stderr is not None
        descriptor = child.stderr.fileno()
        poll = select.poll()  # select.select takes no descriptor above 1023
        poll.register(descriptor, select.POLLIN)
        while True:
            word, rest = self._relay_line(self._kept.find(self._mark))
            if word == b"open":
                # The output before it is the engine's.
                self._kept = self._kept.partition(self._mark + b" open\n")[2]
                self._limit = STDERR_TAIL_BYTES + _MARK_LINE_BYTES
                self.add(b"")
                return None
            if word is not None:
                return f"no keeper answers there: {rest.decode('utf-8', 'replace')}"
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                last = _last_line(self.text())
                return "the relay did not answer in time" + (
                    f"; the engine's client said: {last}" if last else ""
                )
            if poll.poll(left_s * 1000):
                data = os.read(descriptor, _READ_BYTES)
                if not data:
                    return _last_line(self.text()) or "the engine's client ended without output"
                self.add(data)

    def exit_code(self) -> int | None:
        """Return the exit code that the relay has reported; None if it reported none."""
        word, rest = self._relay_line(self._kept.rfind(self._mark))
        return int(rest) if word == b"exit" and rest.isdigit() else None

    def text(self) -> str:
        """Return the last output that is not the relay's."""
        at = self._kept.find(self._mark)
        kept = self._kept
        while at >= 0:
            end = kept.find(b"\n", at)
            kept = kept[:at] + (kept[end + 1 :] if end >= 0 else b"")
            at = kept.find(self._mark)
        return kept[-STDERR_TAIL_BYTES:].decode("utf-8", "replace")

    def _relay_line(self, at: int) -> tuple[bytes | None, bytes]:
        """Return the relay's line that begins there, as its first word and the rest; (None, b"") before it is whole."""
        end = self._kept.find(b"\n", at) if at >= 0 else -1
        if end < 0:
            return None, b""
        word, _, rest = self._kept[at + len(self._mark) : end].strip().partition(b" ")
        return word, rest


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def _drop(child: subprocess.Popen[bytes]) -> None:
    """End a client that opened nothing."""
    for pipe in (child.stdin, child.stdout, child.stderr):
        if pipe is not None:
            pipe.close()
    child.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(_CLOSING_S)
