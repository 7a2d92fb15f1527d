"""One connection to an agent, from its hello to its end. It sends orders, and hands each reply to its caller."""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from orchestrator.adapters.channel import encode
from orchestrator.adapters.transport import Channel, ChannelClosed
from orchestrator.core.model import Problem
from orchestrator.daemon.connection import edge
from orchestrator.protocol.frames import Error, Greeting
from orchestrator.protocol.frames import Reply as ReplyFrame
from orchestrator.protocol.table import Order

A = TypeVar("A")


class LinkDown(Exception):
    """The connection broke before the reply came. The order may or may not have been done."""


class NoAnswer(LinkDown):
    """The agent is connected and did not answer in time."""


class OrderRefused(Exception):
    """The agent answered with an error."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


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


@dataclass(frozen=True, slots=True)
class _Waiting:
    """An order without a reply, and who waits for it."""

    order: Order[Any]
    on_reply: Callable[[Reply[Any]], None] | None
    future: Future[Reply[Any]] | None


class Conversation:
    """One connection whose agent has said hello."""

    def __init__(self, host: str, channel: Channel, hello: Greeting) -> None:
        self.channel = channel
        self.hello = hello
        self.heard_at = time.monotonic()
        self.why: str | None = None
        """Why we end the connection; None if we do not."""
        self._host = host
        self._printed = channel.stderr_tail()
        self._ids = itertools.count(1)
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._waiting: dict[int, _Waiting] = {}
        self._ended = threading.Event()

    def start(self, silence_max_s: Callable[[], float], check_s: float) -> None:
        """Begin to write, and to watch for silence: a cut link looks alive to TCP for many minutes.

        Not by the writer: it is the first that blocks on a link that is cut.
        """
        threading.Thread(target=self._write, name=f"link-{self._host}-writer", daemon=True).start()
        threading.Thread(
            target=self._watch_silence,
            args=(silence_max_s, check_s),
            name=f"link-{self._host}-watch",
            daemon=True,
        ).start()

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
            if not self._ended.is_set():
                self._waiting[number] = _Waiting(order, on_reply, future)
                self._outbox.put(data)
                return
        if future is not None:
            future.set_exception(self._broke())

    def replied(self, frame: ReplyFrame, blob: bytes) -> None:
        """Hand a reply to its caller, or drop it if nobody waits for it. Raises WireError."""
        waiting = self._waiting.get(frame["reply"])
        if waiting is None:
            return
        if "error" in frame:
            reply: Reply[Any] = Reply(None, frame["error"], blob)
        else:
            reply = Reply(edge.answer(self._host, waiting.order, frame["ok"], blob), None, blob)
        # Removed only after the check: if that fails, the end of the connection is reported to the caller.
        del self._waiting[frame["reply"]]
        if waiting.future is not None:
            waiting.future.set_result(reply)
        elif waiting.on_reply is not None:
            waiting.on_reply(reply)

    def end(self) -> None:
        """Wake the writer, and fail all orders without a reply, now and from now on."""
        with self._lock:
            self._ended.set()
            waiting = list(self._waiting.values())
        self._outbox.put(None)
        for one in waiting:
            if one.future is not None:
                one.future.set_exception(self._broke())

    def last_words(self) -> str:
        """Return the last line on stderr since the hello; empty if there is none."""
        printed = self.channel.stderr_tail()
        return edge.last_line(printed.removeprefix(self._printed))

    def break_off(self, why: str) -> None:
        """Close the connection, which ends the reading. `why` is what runs are told."""
        self.why = self.why or why
        self.channel.close()

    def flush_and_close(self) -> None:
        """Let the writer close the connection after it has written what is queued."""
        self._outbox.put(None)

    def _broke(self) -> LinkDown:
        return LinkDown(f"the connection to {self._host} broke")

    def _write(self) -> None:
        while (data := self._outbox.get()) is not None:
            try:
                self.channel.write(data)
            except ChannelClosed:
                return
        self.channel.close()

    def _watch_silence(self, silence_max_s: Callable[[], float], check_s: float) -> None:
        while not self._ended.wait(check_s):
            silent_s = time.monotonic() - self.heard_at
            if silent_s > silence_max_s():
                self.break_off(f"nothing was heard for {silent_s:.0f} s")
                return
