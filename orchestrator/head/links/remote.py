"""Runs a person's command on hosts (`orch exec`), each over a channel of its own and without the coordinator."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

from orchestrator.core.errors import ConnectFailed, HostError, HostUnfit
from orchestrator.core.plan import HostPlan
from orchestrator.head.code.bundle import Bundle
from orchestrator.head.links import bootstrap, edge
from orchestrator.head.links.query import talking
from orchestrator.head.reach.transport import Channel, ChannelClosed, Transport
from orchestrator.protocol.hello import Command

_READ_BYTES = 1 << 16

Output = Callable[[str, int, bytes], None]
"""Called with output of the command: the host, the stream (1 or 2), and the bytes."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How the command ended on one host."""

    host: str
    exit_code: int | None = None
    """None if it is unknown, or the command was not started; `problem` says why."""
    problem: HostError | None = None


class Remote:
    """The command on all of its hosts. `stop` may be called from any thread, while `run` waits in another."""

    def __init__(
        self, transports: Mapping[str, Transport], bundle: Callable[[], Bundle], output: Output
    ) -> None:
        self._transports = transports
        self._bundle = bundle
        self._output = output
        self._channels: dict[str, Channel] = {}
        self._stopped = False
        self._lock = threading.Lock()

    def run(self, asked: Sequence[tuple[HostPlan, Command]]) -> list[Future[Ended]]:
        """Start it on every host at once. Return a future of the end on each, in the order of the hosts."""
        futures: list[Future[Ended]] = []
        for host, command in asked:
            futures.append(Future())
            # Daemons: the end of this process does not wait for a host that does not answer.
            work = partial(self._one, host, command, futures[-1])
            threading.Thread(target=work, name=f"exec-{host.name}", daemon=True).start()
        return futures

    def stop(self) -> set[str]:
        """Ask the hosts to end the command, and return these hosts. The futures complete as usual."""
        with self._lock:
            self._stopped = True
            for channel in self._channels.values():
                with contextlib.suppress(ChannelClosed):
                    channel.write(b"\n")
            return set(self._channels)

    def hang_up(self) -> None:
        """Drop all channels: at the end of its stdin, each host ends the command by itself."""
        for channel in list(self._channels.values()):
            channel.close()

    def _one(self, host: HostPlan, command: Command, future: Future[Ended]) -> None:
        try:
            future.set_result(self._ended(host, command))
        except Exception as e:
            future.set_exception(e)

    def _ended(self, host: HostPlan, command: Command) -> Ended:
        try:
            with talking(self._transports, host) as channel:
                return self._talk(host, channel, command)
        except HostError as e:
            return Ended(host.name, problem=e)

    def _talk(self, host: HostPlan, channel: Channel, command: Command) -> Ended:
        decoder, data = bootstrap.start_command(channel, host, self._bundle(), command)
        with self._lock:
            self._channels[host.name] = channel
            if self._stopped:
                channel.write(b"\n")
        while True:
            for message, blob in decoder.feed(data):
                frame = edge.command(host.name, message)
                if "stream" in frame:
                    self._output(host.name, frame["stream"], blob)
                elif "error" in frame:
                    return Ended(host.name, problem=HostUnfit(host.name, frame["error"]))
                else:
                    pids = ", ".join(map(str, frame.get("left") or []))
                    left = HostUnfit(host.name, f"it ended, but these processes cannot be killed: pid {pids}")
                    return Ended(host.name, frame.get("exit"), left if pids else None)
            data = channel.read(_READ_BYTES)
            if not data:
                raise ConnectFailed(
                    host.name, "the connection broke; the command ends once the host notices that"
                )
