"""One link per host: a connection that is made again whenever it breaks. Orders go in, reports and replies come out.

A link knows nothing of what a run needs: it serves any number of runs, tells each when the agent is up or gone, and
drops orders while there is no connection, since the core asks anew for what is outstanding once the host is up.
Three threads wait for each other here and nowhere else: the link's own reads, one of the crew writes, and the caller
asks.

An agent that breaks the protocol loses its connection. After the first time, the link connects again as usual. If it
happens again, the host is shown as misbehaving, and the link waits for minutes between its tries.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from orchestrator.adapters.bundle import Bundle
from orchestrator.adapters.channel import FrameError
from orchestrator.adapters.transport import Transport
from orchestrator.core.errors import ConnectFailed, HostError
from orchestrator.core.model import Problem
from orchestrator.core.plan import HostPlan
from orchestrator.core.words import duration
from orchestrator.daemon.connection import bootstrap, edge, orders
from orchestrator.daemon.connection.allowance import Intake
from orchestrator.daemon.connection.conversation import (
    Answer,
    Conversation,
    LinkDown,
    NoAnswer,
    OrderRefused,
    Reply,
)
from orchestrator.daemon.connection.crew import Crew
from orchestrator.daemon.connection.edge import WireError
from orchestrator.protocol.check import cleaned
from orchestrator.protocol.hello import Greeting
from orchestrator.protocol.orders import Claim
from orchestrator.protocol.reports import Report
from orchestrator.protocol.table import Order

log = logging.getLogger(__name__)

A = TypeVar("A")

READ_BYTES = 1 << 14
"""A buffer of that size is held for each host while it says nothing: 64 KB each made 16 MB of 1,000 hosts."""

READ_ON_BYTES = 1 << 21
"""The same in the middle of a frame: there is more to come. All that the channel's window lets the host send: what is
left behind is moved within the channel's buffer each time."""

SLOW_CONNECT_S = 5.0
"""An sshd that takes longer to let us in is worth a word: every command over SSH waits as long."""


class Listener(Protocol):
    """Who is told. Called from the link's own thread: must not block for long."""

    def up(self, run_id: str, host: str, hello: Greeting) -> None:
        """Hear that the agent has said hello and watches the run."""

    def down(self, run_id: str, host: str, problem: str) -> None:
        """Hear that there is no connection; it is tried again."""

    def refused(self, run_id: str, host: str, problem: Problem) -> None:
        """Hear that there is no connection until a person acts."""

    def reported(self, run_id: str, host: str, report: Report, link: HostLink) -> None:
        """Hear a heartbeat."""

    def flooded(self, run_id: str, host: str, problem: str) -> None:
        """Hear that the host sends so much that it is read more slowly."""


class Watch(NamedTuple):
    """A run that the link serves."""

    epoch: int
    heartbeat_s: float
    silence_max_s: float
    claim: Claim | None = None


@dataclass(frozen=True, slots=True)
class Pace:
    """How often a link tries. All in seconds."""

    retry_s: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0)
    """Between tries to connect, ± 25 %; the last one again and again."""
    refused_retry_s: float = 30.0
    """Where a person must act first: keys, a missing Python."""
    steady_s: float = 30.0
    """A connection that lived as long was a good one: the next try is made soon again."""
    silence_check_s: float = 1.0
    misbehaving_retry_s: tuple[float, ...] = (60.0, 120.0, 300.0, 600.0)
    """Between tries to connect to an agent that has broken the protocol more than once."""
    forgiven_s: float = 600.0
    """A connection that lived as long clears the count of broken ones."""
    reports_per_s: float = 20.0
    """How often a host may report for long. One that does so more often is read more slowly."""
    unasked_bytes_per_s: float = 2 << 20
    """How much a host may send beside the bytes that it was asked for. More than that is read more slowly."""


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
        """Make a link, which connects once it has a run. `crew`: threads that links share; else it has its own."""
        self.host = host
        self._crew = crew or Crew()
        self._transport = transport
        self._bundle = bundle
        self._listener = listener
        self._pace = pace
        self._lock = threading.RLock()
        self._watches: dict[str, Watch] = {}
        self._connection: Conversation | None = None
        self._wake = threading.Event()
        self._closed = False
        self._held_until = 0.0
        self._misfits = 0
        """How many connections in a row ended because the agent broke the protocol."""
        self._misbehaves: str | None = None
        """Why the link waits before its next try, while it does so for that."""
        self._thread: threading.Thread | None = None
        """Connects and reads, from the first run on: before, nobody would be told why a try failed."""

    # -- called by the coordinator -------------------------------------------------------------------------

    def attach(self, run_id: str, watch: Watch) -> None:
        """Serve that run too."""
        with self._lock:
            self._watches[run_id] = watch
            if self._thread is None:
                name = f"link-{self.host.name}"
                self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._thread.start()
            connection = self._connection
            if connection is not None:
                self._watch(connection, run_id, watch)
        if connection is not None:
            self._listener.up(run_id, self.host.name, connection.hello)
        elif (problem := self._misbehaves) is not None:
            self._listener.down(run_id, self.host.name, cleaned(problem))

    def detach(self, run_id: str) -> bool:
        """Serve that run no more. Returns whether any other is left; without one the link closes."""
        with self._lock:
            watch = self._watches.pop(run_id, None)
            if watch is not None and self._connection is not None:
                self.send(orders.unwatch(run_id, watch.epoch))
            if self._watches:
                return True
        self.close()
        return False

    def send(
        self, order: Order[A], blob: bytes = b"", on_reply: Callable[[Reply[A]], None] | None = None
    ) -> None:
        """Queue an order; dropped where there is no connection. `on_reply` is called by the link's thread."""
        connection = self._connection
        if connection is not None:
            connection.send(order, blob, on_reply)

    def ask(self, order: Order[A], blob: bytes = b"", *, timeout_s: float = 60.0) -> Answer[A]:
        """Send and wait. Raises LinkDown or OrderRefused; never called from the link's own thread."""
        return self.begin(order, blob).answer(timeout_s)

    def begin(self, order: Order[A], blob: bytes = b"") -> Asked[A]:
        """Send. Raises LinkDown; never called from the link's own thread."""
        connection = self._connection
        if connection is None:
            raise LinkDown(f"{self.host.name} is not connected")
        future: Future[Reply[A]] = Future()
        connection.send(order, blob, future=future)
        return Asked(self.host.name, order, future)

    def reset(self, why: str) -> None:
        """Connect anew: the agent is there and does not do its work."""
        connection = self._connection
        if connection is not None:
            connection.break_off(why)

    def hold_off(self, seconds: float) -> None:
        """Break the connection, and make none for so long: `orch chaos` plays a cut."""
        with self._lock:
            self._held_until = time.monotonic() + seconds
        self.reset(f"orch chaos cut it off for {duration(seconds)}")

    def close(self) -> None:
        """End the connection; what runs on the host goes on."""
        with self._lock:
            self._closed = True
            connection = self._connection
        self._wake.set()
        if connection is not None:
            connection.flush_and_close()

    def serves_others(self, run_id: str) -> bool:
        """Return whether more runs than that one share it."""
        return any(served != run_id for served in self._served())

    @property
    def is_connected(self) -> bool:
        """Return whether orders reach the agent now."""
        return self._connection is not None

    @property
    def hello(self) -> Greeting | None:
        """Return what the agent said first, of the connection that is there; None without one."""
        connection = self._connection
        return connection.hello if connection is not None else None

    # -- the link's thread ---------------------------------------------------------------------------------

    def _run(self) -> None:
        tries = 0
        while not self._closed:
            held_s = self._held_until - time.monotonic()
            if held_s > 0:
                self._wake.wait(held_s)
                continue
            began_at = time.monotonic()
            delay_s = None
            try:
                self._connect_and_read()
            except ConnectFailed as e:
                self._tell_down(e.message)
            except (FrameError, WireError) as e:
                delay_s = self._misbehaved(e)
            except HostError as e:
                for run_id in self._served():
                    self._listener.refused(run_id, self.host.name, _problem(e))
                delay_s = self._pace.refused_retry_s
            except Exception:  # a fault of ours must not end the link for good: say it and try again
                log.exception("link %s", self.host.name)
                self._tell_down("a fault in orch; see the coordinator's log")
            if time.monotonic() - began_at > self._pace.steady_s:
                tries = 0
            if delay_s is None:
                delay_s = self._pace.retry_s[min(tries, len(self._pace.retry_s) - 1)]
                tries += 1
            self._wake.wait(delay_s * random.uniform(0.75, 1.25))
            self._misbehaves = None

    def _connect_and_read(self) -> None:
        began_at = time.monotonic()
        channel = self._transport.open(self.host, bootstrap.COMMAND)
        connect_s = time.monotonic() - began_at
        try:
            started = bootstrap.start_agent(channel, self.host, self._bundle())
            if connect_s > SLOW_CONNECT_S:
                started.hello.setdefault("slow", {})["connect_s"] = round(connect_s, 1)
            self._serve(Conversation(self.host.name, channel, started.hello, self._crew), started)
        finally:
            channel.close()

    def _serve(self, connection: Conversation, started: bootstrap.Started) -> None:
        """Serve all runs over a connection until it ends. Raises FrameError, WireError."""
        began_at = time.monotonic()
        with self._lock:
            if self._closed or self._held_until > time.monotonic():  # since while we were connecting
                return
            self._connection = connection
            watches = dict(self._watches)
            for run_id, watch in watches.items():
                self._watch(connection, run_id, watch)
        try:
            for run_id in watches:
                self._listener.up(run_id, self.host.name, started.hello)
            connection.start(self._silence_max_s, self._pace.silence_check_s)
            self._read(connection, started)
        finally:
            with self._lock:
                self._connection = None
            connection.channel.close()
            connection.end()
            if time.monotonic() - began_at > self._pace.forgiven_s:
                self._misfits = 0
        if not self._closed:
            self._tell_down(connection.why or _broken(connection))

    def _read(self, connection: Conversation, started: bootstrap.Started) -> None:
        frames: Iterable[tuple[Mapping[str, Any], bytes]] = started.frames
        intake = Intake(self._pace.reports_per_s, self._pace.unasked_bytes_per_s, time.monotonic())
        sent_bytes = 0
        while True:
            reported, asked_bytes = self._take(connection, frames)
            wait_s = intake.take(reported, sent_bytes - asked_bytes, time.monotonic())
            if wait_s > 0:
                # A host that sends more fills its own channel, and not the memory of this process.
                self._wake.wait(wait_s)
                self._tell_flood(intake)
            in_frame = started.decoder.pending_bytes > 0
            data = connection.channel.read(READ_ON_BYTES if in_frame else READ_BYTES)
            if not data:
                return
            connection.heard_at = time.monotonic()
            sent_bytes = len(data)
            frames = started.decoder.feed(data)

    def _take(
        self, connection: Conversation, frames: Iterable[tuple[Mapping[str, Any], bytes]]
    ) -> tuple[bool, int]:
        """Hand on replies and the newest report: older ones say nothing that it does not say. Raises WireError.

        Returns:
            Whether there was a report, and how many bytes of the frames had been asked for.
        """
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

    def _tell_flood(self, intake: Intake) -> None:
        if intake.is_flood():
            problem = f"{self.host.name} sends more than orch reads of a host; it is read more slowly"
            log.warning("link %s: %s", self.host.name, problem)
            for run_id in self._served():
                self._listener.flooded(run_id, self.host.name, problem)

    def _misbehaved(self, error: Exception) -> float | None:
        """Tell runs how the agent broke the protocol. Return how long to wait; None to wait as usual."""
        problem, delay_s = str(error), None
        self._misfits += 1
        if self._misfits > 1:
            delays = self._pace.misbehaving_retry_s
            delay_s = delays[min(self._misfits - 2, len(delays) - 1)]
            problem = f"it misbehaves: {problem}; it is connected to again in about {duration(delay_s)}"
            self._misbehaves = problem
        log.warning("link %s: %s", self.host.name, problem)
        self._tell_down(problem)
        return delay_s

    def _watch(self, connection: Conversation, run_id: str, watch: Watch) -> None:
        connection.send(orders.watch(run_id, watch.epoch, watch.heartbeat_s, watch.claim))

    def _served(self) -> list[str]:
        with self._lock:
            return list(self._watches)

    def _silence_max_s(self) -> float:
        with self._lock:
            return min((w.silence_max_s for w in self._watches.values()), default=60.0)

    def _tell_down(self, problem: str) -> None:
        for run_id in self._served():
            self._listener.down(run_id, self.host.name, cleaned(problem))


class Asked(Generic[A]):
    """An order that was sent."""

    def __init__(self, host: str, order: Order[A], future: Future[Reply[A]]) -> None:
        self._host = host
        self._order = order
        self._future = future

    def answer(self, timeout_s: float) -> Answer[A]:
        """Wait for the answer. Raises LinkDown, OrderRefused."""
        try:
            reply = self._future.result(timeout_s)
        except TimeoutError as e:
            verb = self._order.verb.name
            raise NoAnswer(f"{self._host} did not answer `{verb}` in {duration(timeout_s)}") from e
        if reply.ok is None:
            raise OrderRefused(_refusal(reply))
        return Answer(reply.ok, reply.blob)


def _broken(connection: Conversation) -> str:
    """Return why a connection ended that we did not end."""
    said = connection.last_words()
    return f"the connection broke: {said}" if said else "the connection broke"


def _refusal(reply: Reply[Any]) -> Problem:
    error = reply.error
    assert error is not None
    return Problem(error["code"], error["message"], error["hint"])


def _problem(error: HostError) -> Problem:
    hint = error.hint and cleaned(error.hint)
    return Problem(error.code, cleaned(error.message), hint, error.exit_code)


__all__ = ["PACE", "HostLink", "LinkDown", "Listener", "NoAnswer", "OrderRefused", "Pace", "Reply", "Watch"]
