"""Asks hosts without a coordinator: connect, start an agent, ask, and disconnect."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from orchestrator.core.errors import ConnectFailed, HostError
from orchestrator.core.plan import HostPlan
from orchestrator.head.code.bundle import Bundle
from orchestrator.head.links import bootstrap, edge
from orchestrator.head.links.conversation import Reply
from orchestrator.head.links.edge import WireError
from orchestrator.head.reach.alarm import ALARMS
from orchestrator.head.reach.transport import Channel, ChannelClosed, Transport
from orchestrator.protocol.channel import FrameError, encode
from orchestrator.protocol.check import cleaned
from orchestrator.protocol.hello import Greeting
from orchestrator.protocol.orders.base import Order

AT_ONCE_MAX = 256
"""How many hosts are asked at once: all of nearly any cluster, since one that does not answer takes until its timeout.
The transport limits the handshakes with one sshd or bastion."""

_READ_BYTES = 1 << 16

A = TypeVar("A")


@contextmanager
def talking(transports: Mapping[str, Transport], host: HostPlan) -> Iterator[Channel]:
    """Open a channel on which our program is started. If it breaks, that is a ConnectFailed."""
    channel = transports[host.transport].open(host, bootstrap.COMMAND)
    try:
        yield channel
    except (ChannelClosed, FrameError, WireError) as e:
        raise ConnectFailed(host.name, f"the connection broke: {cleaned(str(e))}") from e
    finally:
        channel.close()


@dataclass(frozen=True, slots=True)
class Answer(Generic[A]):
    """The answer of one host. `problem`: why it could not be asked; then there are no replies."""

    host: HostPlan
    replies: tuple[Reply[A], ...] = ()
    """In the order of the questions."""
    hello: Greeting | None = None
    problem: HostError | None = None

    @property
    def unheard(self) -> HostError | None:
        """Return why the host's state is unknown: it could not be asked, or answered with an error."""
        if self.problem is not None:
            return self.problem
        refused = [reply.error for reply in self.replies if reply.error is not None]
        if not refused:
            return None
        return ConnectFailed(self.host.name, f"it answered with an error: {refused[0]['message']}")

    @property
    def place(self) -> tuple[object, object]:
        """Return a value that is the same for two names of one machine and directory."""
        return (self.hello["boot_id"], self.hello["host_dir"]) if self.hello is not None else (None, None)


class Asker:
    """Asks any hosts the same way, several at once."""

    def __init__(self, transports: Mapping[str, Transport], bundle: Callable[[], Bundle]) -> None:
        self._transports = transports
        self._bundle = bundle

    def ask(
        self, asked: Sequence[tuple[HostPlan, Sequence[Order[A]]]], *, timeout_s: float
    ) -> list[Answer[A]]:
        """Return one answer for each host, in their order. An answer holds the error of its host."""
        if not asked:
            return []
        with ThreadPoolExecutor(min(AT_ONCE_MAX, len(asked)), thread_name_prefix="ask") as pool:
            return list(pool.map(lambda question: self._one(question[0], question[1], timeout_s), asked))

    def _one(self, host: HostPlan, orders: Sequence[Order[A]], timeout_s: float) -> Answer[A]:
        try:
            with talking(self._transports, host) as channel, ALARMS.after(timeout_s, channel.close):
                return self._talk(host, channel, orders)
        except HostError as e:
            if e.code == "no-python" and host.python != "python3":
                # That of a run which could not begin for it; any Python answers
                return replace(self._one(replace(host, python="python3"), orders, timeout_s), host=host)
            return Answer(host, problem=e)

    def _talk(self, host: HostPlan, channel: Channel, orders: Sequence[Order[A]]) -> Answer[A]:
        started = bootstrap.start_agent(channel, host, self._bundle())
        for number, order in enumerate(orders):
            channel.write(encode({**order.fields, "id": number}))
        replies: dict[int, Reply[A]] = {}
        frames = started.frames
        while True:
            for message, blob in frames:
                frame = edge.frame(host.name, message, blob)
                if "report" in frame or frame["reply"] >= len(orders):
                    continue
                number = frame["reply"]
                if "error" in frame:
                    replies[number] = Reply(None, frame["error"], b"")
                else:
                    ok = edge.answer(host.name, orders[number], frame["ok"], blob)
                    replies[number] = Reply(ok, None, blob)
            if len(replies) == len(orders):
                return Answer(host, tuple(replies[n] for n in range(len(orders))), started.hello)
            data = channel.read(_READ_BYTES)
            if not data:
                raise ConnectFailed(host.name, "it did not answer in time, or the connection broke")
            frames = started.decoder.feed(data)
