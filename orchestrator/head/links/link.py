"""One link per host: a connection that is made again whenever it breaks. Orders go in, reports and replies come out.

A link does not know what a run needs. It serves any number of runs, reports to each when the agent is up or gone, and
drops orders while there is no connection: the core repeats outstanding ones once the host is up. It has no thread of
its own: one of the crew connects, another writes, and the thread that reads the connection (one for all local ones,
paramiko's own for SSH) hands on what arrives.

An agent that breaks the protocol loses its connection. After the first time, the link connects again as usual. If it
happens again, the host is shown as misbehaving, and the link waits for minutes between its tries.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

from orchestrator.core.errors import ConnectFailed, HostError
from orchestrator.core.plan import Gpu, HostPlan
from orchestrator.core.state.run import Problem
from orchestrator.core.words import duration
from orchestrator.head.code import compiled
from orchestrator.head.code.bundle import Bundle
from orchestrator.head.links import bootstrap, edge
from orchestrator.head.links import requests as orders
from orchestrator.head.links.conversation import (
    Answer,
    Asked,
    Conversation,
    LinkDown,
    NoAnswer,
    OrderRefused,
    Reply,
)
from orchestrator.head.links.crew import Crew
from orchestrator.head.links.edge import WireError
from orchestrator.head.links.reception import Frames, Reception
from orchestrator.head.reach.relayed import RelayTransport
from orchestrator.head.reach.transport import Transport
from orchestrator.protocol.channel import FrameError
from orchestrator.protocol.check import cleaned
from orchestrator.protocol.hello import Greeting
from orchestrator.protocol.limits import PSUTIL_AFTER_S
from orchestrator.protocol.orders.base import Order
from orchestrator.protocol.orders.driving import UNWATCH, Claim
from orchestrator.protocol.reports import Report

log = logging.getLogger(__name__)

A = TypeVar("A")

SLOW_CONNECT_S = 5.0
"""If an sshd takes longer to accept a connection, it is reported as slow: every command over SSH waits as long."""


class Listener(Protocol):
    """Called by the thread that reads the connection, or one of the crew. It must not block for long."""

    def up(self, run_id: str, host: str, hello: Greeting) -> None:
        """Handle the hello of an agent, which watches the run from now on."""

    def down(self, run_id: str, host: str, problem: str) -> None:
        """Handle the loss of the connection, or a failed try. The link tries again."""

    def refused(self, run_id: str, host: str, problem: Problem) -> None:
        """Handle a failure that lasts until a person acts."""

    def reported(self, run_id: str, host: str, report: Report, link: HostLink) -> None:
        """Handle a heartbeat."""

    def flooded(self, run_id: str, host: str, problem: str) -> None:
        """Handle that the host sends so much that it is read more slowly."""


class Watch(NamedTuple):
    """A run that the link serves."""

    epoch: int
    heartbeat_s: float
    silence_max_s: float
    claim: Claim | None = None
    gpus: tuple[Gpu, ...] = ()
    """The GPUs of this host that the run has for itself."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How often a link tries. All in seconds."""

    retry_s: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0)
    """The waits between tries to connect, ± 25 %; the last one repeats."""
    refused_retry_s: float = 30.0
    """The wait where a person must act first: keys, a missing Python."""
    steady_s: float = 30.0
    """After a connection that lasted so long, the waits begin again with the shortest."""
    start_s: float = 60.0
    """For an agent to say hello, once sshd has let us in."""
    silence_check_s: float = 1.0
    misbehaving_retry_s: tuple[float, ...] = (60.0, 120.0, 300.0, 600.0)
    """The waits between tries to connect to an agent that has broken the protocol more than once."""
    forgiven_s: float = 600.0
    """A connection that lasted so long clears the count of those that broke the protocol."""
    reports_per_s: float = 20.0
    """How often a host may report. One that reports more often for long is read more slowly."""
    unasked_bytes_per_s: float = 2 << 20
    """How much a host may send unasked. One that sends more for long is read more slowly."""


PACE = Pace()


class HostLink:
    """The connection to one host."""

    def __init__(
        self,
        host: HostPlan,
        transport: Transport,
        bundle: Callable[[], Bundle],
        listener: Listener,
        pace: Pace = PACE,
        crew: Crew | None = None,
    ) -> None:
        """Make a link, which connects once it has a run. `crew`: the threads that links share; None for its own."""
        self.host = host
        self._crew = crew or Crew()
        self._transport = transport
        self._bundle = bundle
        self._listener = listener
        self._pace = pace
        self._lock = threading.RLock()
        self._watches: Mapping[str, Watch] = {}
        """Replaced and never changed, so that it is read without the lock, which a closing thread may hold."""
        self._fences: dict[str, int] = {}
        self._connection: Conversation | None = None
        self._closed = False
        self._held_until = 0.0
        self._boot_id: str | None = None
        """Of the last connection."""
        self._tries = 0
        """How many tries in a row led to no steady connection."""
        self._began_at = 0.0
        """When the last try began."""
        self._misfits = 0
        """How many connections in a row ended because the agent broke the protocol."""
        self._misbehaves: str | None = None
        """How the agent broke the protocol, while the link waits for that reason."""
        self._is_begun = False
        """Whether it connects, which it does from the first run on: before, nobody would learn why a try failed."""

    # -- called by the coordinator -------------------------------------------------------------------------

    def fence(self, run_id: str, above: int) -> None:
        """Let orders of that run carry at least this epoch, since this host has obeyed one as high."""
        if above:
            self._fences[run_id] = above

    def _fenced(self, order: Order[A]) -> Order[A]:
        above = self._fences.get(order.fields.get("run", ""))
        return Order(order.verb, {**order.fields, "epoch": order.fields["epoch"] + above}) if above else order

    def attach(self, run_id: str, watch: Watch) -> None:
        """Serve that run too."""
        with self._lock:
            self._watches = {**self._watches, run_id: watch}
            if not self._is_begun:
                self._is_begun = True
                self._crew.do(self._try)
            connection = self._connection
            if connection is not None:
                self._watch(connection, run_id, watch)
        if connection is not None:
            self._listener.up(run_id, self.host.name, connection.hello)
        elif (problem := self._misbehaves) is not None:
            self._listener.down(run_id, self.host.name, cleaned(problem))

    def detach(self, run_id: str) -> None:
        """Serve that run no more. The connection stays until `close`."""
        with self._lock:
            watch = self._watches.get(run_id)
            self._watches = {other: kept for other, kept in self._watches.items() if other != run_id}
            if watch is not None and self._connection is not None:
                self.send(UNWATCH({"run": run_id, "epoch": watch.epoch}))
            self._fences.pop(run_id, None)

    def send(
        self, order: Order[A], blob: bytes = b"", on_reply: Callable[[Reply[A]], None] | None = None
    ) -> None:
        """Queue an order, or drop it where there is no connection. The reading thread calls `on_reply`."""
        connection = self._connection
        if connection is not None:
            connection.send(self._fenced(order), blob, on_reply)

    def ask(self, order: Order[A], blob: bytes = b"", *, timeout_s: float = 60.0) -> Answer[A]:
        """Send and wait. Raises LinkDown or OrderRefused. Never called by the thread that reads the connection."""
        return self.begin(order, blob).answer(timeout_s)

    def begin(self, order: Order[A], blob: bytes = b"") -> Asked[A]:
        """Send. Raises LinkDown. Never called by the thread that reads the connection."""
        connection = self._connection
        if connection is None:
            raise LinkDown(f"{self.host.name} is not connected")
        future: Future[Reply[A]] = Future()
        connection.send(self._fenced(order), blob, future=future)
        return Asked(self.host.name, order, future)

    def reset(self, why: str) -> None:
        """Connect anew, because the agent is there but does not do its work."""
        connection = self._connection
        if connection is not None:
            connection.break_off(why)

    def hold_off(self, seconds: float, why: str = "") -> None:
        """Break the connection, and make none for so long: the fault `cut` of `orch chaos`, or a pod that ends."""
        with self._lock:
            self._held_until = time.monotonic() + seconds
        self.reset(why or f"orch chaos cut it off for {duration(seconds)}")

    def close(self) -> None:
        """End the connection; what runs on the host goes on."""
        with self._lock:
            self._closed = True
            connection = self._connection
        self._crew.no_more(self._try)
        if connection is not None:
            connection.flush_and_close()

    def serves_others(self, run_id: str) -> bool:
        """Return whether more runs than that one share it."""
        return any(served != run_id for served in self._served())

    @property
    def is_needed(self) -> bool:
        """Return whether it serves a run."""
        return bool(self._watches)

    @property
    def is_connected(self) -> bool:
        """Return whether orders reach the agent now."""
        return self._connection is not None

    @property
    def hello(self) -> Greeting | None:
        """Return the agent's hello on the present connection; None if there is none."""
        connection = self._connection
        return connection.hello if connection is not None else None

    # -- from one connection to the next -------------------------------------------------------------------

    def _try(self) -> None:
        """Connect and begin to serve. It runs in a thread of the crew, since it blocks."""
        if self._closed:
            return
        self._began_at = time.monotonic()
        held_s = self._held_until - self._began_at
        if held_s > 0:
            with self._lock:
                if not self._closed:
                    self._crew.later(held_s, self._try)
            return
        self._misbehaves = None
        try:
            channel = self._transport.open(self.host, bootstrap.COMMAND)
            connect_s = time.monotonic() - self._began_at
            try:
                started = bootstrap.start_agent(
                    channel, self.host, self._bundle(), timeout_s=self._pace.start_s
                )
            except BaseException:
                channel.close()
                raise
            if connect_s > SLOW_CONNECT_S:
                started.hello.setdefault("slow", {})["connect_s"] = round(connect_s, 1)
            last, transport = self._boot_id, self._transport
            if last not in (None, started.hello["boot_id"]) and isinstance(transport, RelayTransport):
                started.hello["before"] = transport.before(self.host, str(last))
            self._boot_id = started.hello["boot_id"]
            self._serve(Conversation(self.host.name, channel, started.hello, self._crew), started)
        except Exception as e:
            self._try_again(e)

    def _try_again(self, error: Exception | None) -> None:
        """Report what was wrong, and connect anew later."""
        delay_s = self._report_failure(error) if error is not None else None
        if time.monotonic() - self._began_at > self._pace.steady_s:
            self._tries = 0
        if delay_s is None:
            delay_s = self._pace.retry_s[min(self._tries, len(self._pace.retry_s) - 1)]
            self._tries += 1
        with self._lock:
            if not self._closed:
                self._crew.later(delay_s * random.uniform(0.75, 1.25), self._try)

    def _report_failure(self, error: Exception) -> float | None:
        """Report a failure to the runs, and return how long to wait before the next try; None to wait as usual."""
        match error:
            case ConnectFailed():
                self._report_down(error.message)
            case FrameError() | WireError():
                return self._misbehaved(error)
            case HostError():
                for run_id in self._served():
                    hint = error.hint and cleaned(error.hint)
                    self._listener.refused(
                        run_id,
                        self.host.name,
                        Problem(error.code, cleaned(error.message), hint, error.exit_code),
                    )
                return self._pace.refused_retry_s
            case _:  # a bug in orch must not end the link for good: report it and try again
                log.error("link %s", self.host.name, exc_info=error)
                self._report_down("a fault in orch; see the coordinator's log")
        return None

    def _serve(self, connection: Conversation, started: bootstrap.Started) -> None:
        """Serve all runs over a connection, until it ends."""
        with self._lock:
            is_late = self._closed or self._held_until > time.monotonic()  # since while we were connecting
            if not is_late:
                self._connection = connection
                watches = self._watches
                for run_id, watch in watches.items():
                    self._watch(connection, run_id, watch)
        if is_late:
            connection.channel.close()
            self._try_again(None)
            return
        ended = partial(self._ended, connection, time.monotonic())
        try:
            for run_id in watches:
                self._listener.up(run_id, self.host.name, started.hello)
            if started.hello["psutil_wanted"]:
                self._crew.later(PSUTIL_AFTER_S, partial(_bring_psutil, connection))
            connection.start(self._silence_max_s, self._pace.silence_check_s)
            self._receive(connection, started.frames)
            reception = Reception(
                started.decoder,
                self._pace.reports_per_s,
                self._pace.unasked_bytes_per_s,
                heard=partial(self._receive, connection),
                flooded=self._report_flood,
                # The thread that also reads other connections must not wait for the end of this one.
                ended=lambda error: self._crew.do(partial(ended, error)),
            )
            connection.channel.feed(reception.receive)
        except Exception as e:
            ended(e)

    def _ended(self, connection: Conversation, began_at: float, error: Exception | None) -> None:
        """Drop a connection, report that to the runs, and try again. It runs in a thread of the crew."""
        with self._lock:
            if (
                self._connection is not connection
            ):  # it ended for two reasons, and this was done for the first
                return
            self._connection = None
        try:
            connection.channel.close()
            if isinstance(error, WireError):
                connection.why = connection.why or str(error)
            connection.end()
            if time.monotonic() - began_at > self._pace.forgiven_s:
                self._misfits = 0
            if error is None and not self._closed:
                words = connection.last_words()
                broke = f"the connection broke: {words}" if words else "the connection broke"
                self._report_down(connection.why or broke)
        finally:
            self._try_again(error)

    def _receive(self, connection: Conversation, frames: Frames) -> tuple[bool, int]:
        """Hand on replies and the newest report, which replaces older ones. Raises WireError.

        Returns:
            Whether there was a report, and how many bytes of the frames had been asked for.
        """
        connection.heard_at = time.monotonic()
        checked = [(edge.frame(self.host.name, message, blob), blob) for message, blob in frames]
        newest = max((at for at, (frame, _) in enumerate(checked) if "report" in frame), default=None)
        asked_bytes = 0
        for at, (frame, blob) in enumerate(checked):
            if "report" not in frame:
                asked_bytes += len(blob) if connection.replied(frame, blob) else 0
            elif at == newest:
                for run_id in self._served():
                    if run_id in frame["report"]["runs"]:
                        self._listener.reported(run_id, self.host.name, frame["report"], self)
        return newest is not None, asked_bytes

    def _report_flood(self) -> None:
        problem = f"{self.host.name} sends more than orch reads of a host; it is read more slowly"
        log.warning("link %s: %s", self.host.name, problem)
        for run_id in self._served():
            self._listener.flooded(run_id, self.host.name, problem)

    def _misbehaved(self, error: Exception) -> float | None:
        """Report to the runs how the agent broke the protocol. Return how long to wait; None to wait as usual."""
        problem, delay_s = str(error), None
        self._misfits += 1
        if self._misfits > 1:
            delays = self._pace.misbehaving_retry_s
            delay_s = delays[min(self._misfits - 2, len(delays) - 1)]
            problem = f"it misbehaves: {problem}; it is connected to again in about {duration(delay_s)}"
            self._misbehaves = problem
        log.warning("link %s: %s", self.host.name, problem)
        self._report_down(problem)
        return delay_s

    def _watch(self, connection: Conversation, run_id: str, watch: Watch) -> None:
        order = orders.watch(run_id, watch.epoch, watch.heartbeat_s, watch.claim, watch.gpus)
        connection.send(self._fenced(order))

    def _served(self) -> list[str]:
        return list(self._watches)

    def _silence_max_s(self) -> float:
        return min((w.silence_max_s for w in self._watches.values()), default=60.0)

    def _report_down(self, problem: str) -> None:
        for run_id in self._served():
            self._listener.down(run_id, self.host.name, cleaned(problem))


def _bring_psutil(connection: Conversation) -> None:
    for order, part in orders.psutil(compiled.psutil()):
        connection.send(order, part)


__all__ = ["PACE", "HostLink", "LinkDown", "Listener", "NoAnswer", "OrderRefused", "Pace", "Reply", "Watch"]
