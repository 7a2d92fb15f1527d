"""One connection to an agent, from its hello to its end. It sends orders, and hands each reply to its caller."""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from orchestrator.core.state.run import Problem, Run
from orchestrator.core.words import duration, size
from orchestrator.head.links import edge
from orchestrator.head.links.crew import Crew
from orchestrator.head.reach.transport import Channel, ChannelClosed
from orchestrator.protocol.channel import encode
from orchestrator.protocol.hello import Greeting
from orchestrator.protocol.orders.base import Order
from orchestrator.protocol.replies import Error
from orchestrator.protocol.replies import Reply as ReplyFrame

A = TypeVar("A")

UNWRITTEN_BYTES_MAX = 64 << 20
"""How much may wait to be written to one host."""

UNANSWERED_MAX = 10_000
"""How many orders one host may leave without a reply."""


class LinkDown(Exception):
    """The connection broke before the reply came. The host may have carried out the order."""


class NoAnswer(LinkDown):
    """The agent is connected and did not answer in time."""


class OrderRefused(Exception):
    """The agent answered with an error."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


def refused(code: str, message: str, hint: str | None = None, **more: Any) -> OrderRefused:
    """Return the error for a refused order. `more`: fields of Problem."""
    return OrderRefused(Problem(code, message, hint, **more))


class Reply(NamedTuple, Generic[A]):
    """A reply. Either `ok` or `error` is None."""

    ok: A | None
    error: Error | None
    blob: bytes


class Answer(NamedTuple, Generic[A]):
    """The reply to an order that was done."""

    ok: A
    blob: bytes


class Asks(Protocol):
    """The part of a link that asks one question."""

    def ask(self, order: Order[A], blob: bytes = b"", *, timeout_s: float = 60.0) -> Answer[A]:
        """Send and wait. Raises LinkDown, OrderRefused."""


class Pending(Protocol[A]):
    """The answer to an order that was sent."""

    def answer(self, timeout_s: float) -> Answer[A]:
        """Wait for it. Raises LinkDown, OrderRefused."""


class AsksAhead(Asks, Protocol):
    """The part of a link that asks several questions at once."""

    def begin(self, order: Order[A], blob: bytes = b"") -> Pending[A]:
        """Send. Raises LinkDown."""


class Lends(Protocol):
    """Lends a link to a host for the time of a call, also for a run that has ended."""

    def __call__(self, run: Run, name: str, use: Callable[[Asks], A]) -> A:
        """Return what `use` returns. Raises LinkDown if the host cannot be reached."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """An order without a reply, and who waits for it."""

    order: Order[Any]
    on_reply: Callable[[Reply[Any]], None] | None
    future: Future[Reply[Any]] | None


LATE_S = 1.0
"""By how much a check may come late before the rest counts as time in which this process did not run."""


class Silence:
    """How long nothing was heard, as checks find it that come every `check_s`.

    Time in which this process was stopped is left out: what arrived meanwhile is not read yet.
    """

    def __init__(self, now: float, check_s: float) -> None:
        self._checked_at = now
        self._check_s = check_s
        self._lasted_s = 0.0

    def lasts_s(self, now: float, heard_at: float) -> float:
        """Return the seconds of silence at a check."""
        if heard_at > self._checked_at:
            self._lasted_s = 0.0
        self._lasted_s += min(now - max(heard_at, self._checked_at), self._check_s + LATE_S)
        self._checked_at = now
        return self._lasted_s


class Conversation:
    """One connection whose agent has said hello."""

    def __init__(self, host: str, channel: Channel, hello: Greeting, crew: Crew) -> None:
        self.channel = channel
        self.hello = hello
        self.heard_at = time.monotonic()
        self.why: str | None = None
        """Why we end the connection; None if we do not."""
        self._host = host
        self._crew = crew
        self._printed = channel.stderr_tail()
        self._ids = itertools.count(1)
        self._outbox: deque[bytes | None] = deque()
        self._unwritten_bytes = 0
        self._is_writing = True
        """Whether a thread writes, or must not begin to."""
        self._silence_max_s: Callable[[], float] = lambda: math.inf
        self._silence = Silence(self.heard_at, math.inf)
        self._lock = threading.Lock()
        self._waiting: dict[int, _Waiting] = {}
        self._ended = threading.Event()

    def start(self, silence_max_s: Callable[[], float], check_s: float) -> None:
        """Begin to write, and to watch for silence: a cut link looks alive to TCP for many minutes.

        The thread that writes cannot watch, since it is the first to block on a cut link.
        """
        self._silence_max_s = silence_max_s
        self._silence = Silence(time.monotonic(), check_s)
        with self._lock:
            self._is_writing = bool(self._outbox)
            if self._is_writing:
                self._crew.do(self._write)
        self._crew.again(self._check_silence, check_s)

    def send(
        self,
        order: Order[A],
        blob: bytes = b"",
        on_reply: Callable[[Reply[A]], None] | None = None,
        future: Future[Reply[A]] | None = None,
    ) -> None:
        """Queue an order. The reply goes to `on_reply` or `future`; the future also fails when the connection ends."""
        number = next(self._ids)
        data = encode({**order.fields, "id": number}, blob)
        with self._lock:
            ended = self._ended.is_set()
            if not ended:
                self._waiting[number] = _Waiting(order, on_reply, future)
                self._unwritten_bytes += len(data)
                self._put(data)
        if ended and future is not None:
            future.set_exception(self._broke())
        elif (too_much := self._too_much()) is not None:
            self.break_off(too_much)  # then `end` reports it to the callers that wait

    def _too_much(self) -> str | None:
        """Return why no more orders are sent: the host reads none, or answers none. None if it does both."""
        if self._unwritten_bytes > UNWRITTEN_BYTES_MAX:
            return f"it reads no orders: {size(self._unwritten_bytes)} wait to be written"
        if len(self._waiting) > UNANSWERED_MAX:
            return f"it answers no orders: {len(self._waiting)} are without a reply"
        return None

    def replied(self, frame: ReplyFrame, blob: bytes) -> bool:
        """Hand a reply to its caller, or drop it if nobody waits for it, and return which. Raises WireError."""
        waiting = self._waiting.get(frame["reply"])
        if waiting is None:
            return False
        if "error" in frame:
            reply: Reply[Any] = Reply(None, frame["error"], blob)
        else:
            reply = Reply(edge.answer(self._host, waiting.order, frame["ok"], blob), None, blob)
        # Removed only after the check: if that fails, the end of the connection is reported to the caller.
        with self._lock:  # the thread that removes it reports to the caller: `end` may run at this moment
            if self._waiting.pop(frame["reply"], None) is None:
                return True
        if waiting.future is not None:
            waiting.future.set_result(reply)
        elif waiting.on_reply is not None:
            waiting.on_reply(reply)
        return True

    def end(self) -> None:
        """Fail all orders without a reply, now and from now on."""
        self._crew.no_more(self._check_silence)
        with self._lock:
            self._ended.set()
            waiting, self._waiting = self._waiting, {}
        for pending in waiting.values():
            if pending.future is not None:
                pending.future.set_exception(self._broke())

    def last_words(self) -> str:
        """Return the last line on stderr since the hello; empty if there is none."""
        printed = self.channel.stderr_tail()
        return edge.last_line(printed.removeprefix(self._printed))

    def break_off(self, why: str) -> None:
        """Close the connection, which ends the reading. `why` is reported to the runs."""
        self.why = self.why or why
        self._crew.do(self.channel.close)  # this thread may hold a lock that the reader waits for

    def flush_and_close(self) -> None:
        """Close the connection after what is queued has been written."""
        with self._lock:
            self._put(None)

    def _broke(self) -> LinkDown:
        why = f": {self.why}" if self.why else ""
        return LinkDown(f"the connection to {self._host} broke{why}")

    def _put(self, data: bytes | None) -> None:
        """Queue data, or with None the end. The lock is held."""
        self._outbox.append(data)
        if not self._is_writing:
            self._is_writing = True
            self._crew.do(self._write)

    def _write(self) -> None:
        """Write until nothing is queued. One thread at a time."""
        while (data := self._next()) is not None:
            try:
                self.channel.write(data)
            except ChannelClosed:
                return
            with self._lock:
                self._unwritten_bytes -= len(data)

    def _next(self) -> bytes | None:
        with self._lock:
            if not self._outbox:
                self._is_writing = False
                return None
            data = self._outbox.popleft()
        if data is None:
            self.channel.close()
        return data

    def _check_silence(self) -> None:
        """Break off where nothing was heard for too long."""
        silent_s = self._silence.lasts_s(time.monotonic(), self.heard_at)
        if silent_s > self._silence_max_s():
            self._crew.no_more(self._check_silence)
            self.break_off(f"nothing was heard for {duration(silent_s)}")


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
            assert reply.error is not None
            raise refused(reply.error["code"], reply.error["message"], reply.error["hint"])
        return Answer(reply.ok, reply.blob)
