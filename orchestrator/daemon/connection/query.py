"""Questions to hosts without a coordinator: connect, start an agent, ask, and go away again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from orchestrator.adapters.alarm import ALARMS
from orchestrator.adapters.bundle import Bundle
from orchestrator.adapters.channel import FrameError, encode
from orchestrator.adapters.transport import Channel, ChannelClosed, Transport
from orchestrator.core.errors import ConnectFailed, HostError
from orchestrator.core.plan import HostPlan
from orchestrator.daemon.connection import bootstrap

AT_ONCE_MAX = 8
"""Handshakes: more at once are refused by an sshd with MaxStartups, as it is by default."""

_READ_BYTES = 1 << 16

Order = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """What one host said. `problem`: it could not be asked; then there is nothing else."""

    host: HostPlan
    replies: tuple[Mapping[str, Any], ...] = ()
    """In the order of the questions: each with `ok` or `error`."""
    hello: Mapping[str, Any] = field(default_factory=dict)
    problem: HostError | None = None

    @property
    def place(self) -> tuple[object, object]:
        """Two names of one machine and directory have the same."""
        return self.hello.get("boot_id"), self.hello.get("host_dir")


class Asker:
    """Asks any hosts the same way, several at once."""

    def __init__(self, transports: Mapping[str, Transport], bundle: Callable[[], Bundle]) -> None:
        self._transports = transports
        self._bundle = bundle

    def ask(self, asked: Sequence[tuple[HostPlan, Sequence[Order]]], *, timeout_s: float) -> list[Answer]:
        """One answer a host, in their order; what goes wrong with one is in its answer."""
        with ThreadPoolExecutor(AT_ONCE_MAX, thread_name_prefix="ask") as pool:
            return list(pool.map(lambda one: self._one(one[0], one[1], timeout_s), asked))

    def _one(self, host: HostPlan, orders: Sequence[Order], timeout_s: float) -> Answer:
        try:
            channel = self._transports[host.transport].open(host, bootstrap.COMMAND)
            try:
                with ALARMS.after(timeout_s, channel.close):
                    return self._talk(host, channel, orders)
            finally:
                channel.close()
        except HostError as e:
            return Answer(host, problem=e)
        except (ChannelClosed, FrameError) as e:
            return Answer(host, problem=ConnectFailed(host.name, f"the connection broke: {e}"))

    def _talk(self, host: HostPlan, channel: Channel, orders: Sequence[Order]) -> Answer:
        started = bootstrap.start_agent(channel, host, self._bundle())
        for number, order in enumerate(orders):
            channel.write(encode({**order, "id": number}))
        replies: dict[int, Mapping[str, Any]] = {}
        frames = started.frames
        while True:
            replies.update({message["reply"]: message for message, _ in frames if "reply" in message})
            if len(replies) == len(orders):
                return Answer(host, tuple(replies[n] for n in range(len(orders))), started.hello)
            data = channel.read(_READ_BYTES)
            if not data:
                raise ConnectFailed(host.name, "it did not answer in time, or the connection broke")
            frames = started.decoder.feed(data)
