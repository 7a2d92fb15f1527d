"""One link per host: a connection that is made again whenever it breaks. Orders go in, reports and replies come out.

A link knows nothing of what a run needs: it serves any number of runs, tells each when the agent is up or gone, and
drops orders while there is no connection, since the core asks anew for what is outstanding once the host is up.
Three threads wait for each other here and nowhere else: the link's own reads, a second writes, and the caller asks.
"""

from __future__ import annotations

import itertools
import logging
import queue
import random
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from orchestrator.adapters.bundle import Bundle
from orchestrator.adapters.channel import Decoder, FrameError, encode
from orchestrator.adapters.transport import Channel, ChannelClosed, Transport
from orchestrator.core.errors import ConnectFailed, HostError
from orchestrator.core.model import Problem
from orchestrator.core.plan import HostPlan
from orchestrator.daemon.connection import bootstrap
from orchestrator.daemon.connection.wire import WireError

log = logging.getLogger(__name__)


READ_BYTES = 1 << 16

SLOW_CONNECT_S = 5.0
"""An sshd that takes longer to let us in is worth a word: every command over SSH waits as long."""


class LinkDown(Exception):
    """The connection broke before the reply came; the order may or may not have been done."""


class NoAnswer(LinkDown):
    """The agent is connected and did not answer in time."""


class OrderRefused(Exception):
    """The agent answered with an error."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


class Reply(NamedTuple):
    """What an agent answered."""

    ok: Mapping[str, Any] | None
    error: Mapping[str, Any] | None
    blob: bytes


class Listener(Protocol):
    """Who is told. Called from the link's own thread: must not block for long."""

    def up(self, run_id: str, host: str, hello: Mapping[str, Any]) -> None:
        """The agent has said hello and watches the run."""

    def down(self, run_id: str, host: str, problem: str) -> None:
        """No connection; it is tried again."""

    def refused(self, run_id: str, host: str, problem: Problem) -> None:
        """No connection until a person acts."""

    def reported(self, run_id: str, host: str, report: Mapping[str, Any], link: HostLink) -> None:
        """A heartbeat."""


class Watch(NamedTuple):
    """A run that the link serves."""

    epoch: int
    heartbeat_s: float
    silence_max_s: float


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


PACE = Pace()


class Asks(Protocol):
    """The part of a link that asks one question."""

    def ask(self, order: Mapping[str, Any], blob: bytes = b"", *, timeout_s: float = 60.0) -> Reply:
        """Send and wait; LinkDown, OrderRefused."""


class HostLink:
    """The connection to one host."""

    def __init__(
        self,
        host: HostPlan,
        transport: Transport,
        bundle: Callable[[], Bundle],
        listener: Listener,
        pace: Pace = PACE,
    ) -> None:
        self.host = host
        self._transport = transport
        self._bundle = bundle
        self._listener = listener
        self._pace = pace
        self._lock = threading.RLock()
        self._watches: dict[str, Watch] = {}
        self._connection: _Connection | None = None
        self._wake = threading.Event()
        self._closed = False
        self._held_until = 0.0
        self._thread = threading.Thread(target=self._run, name=f"link-{host.name}", daemon=True)
        self._thread.start()

    # -- called by the coordinator -------------------------------------------------------------------------

    def attach(self, run_id: str, watch: Watch) -> None:
        """Serve that run too."""
        with self._lock:
            self._watches[run_id] = watch
            connection = self._connection
            if connection is not None:
                self._watch(connection, run_id, watch)
        if connection is not None:
            self._listener.up(run_id, self.host.name, connection.hello)

    def detach(self, run_id: str) -> bool:
        """Serve that run no more. Whether any other is left; without one the link closes."""
        with self._lock:
            watch = self._watches.pop(run_id, None)
            if watch is not None and self._connection is not None:
                self.send({"order": "unwatch", "run": run_id, "epoch": watch.epoch})
            if self._watches:
                return True
        self.close()
        return False

    def send(
        self, order: Mapping[str, Any], blob: bytes = b"", on_reply: Callable[[Reply], None] | None = None
    ) -> None:
        """Queue an order; dropped where there is no connection. `on_reply` is called by the link's thread."""
        connection = self._connection
        if connection is not None:
            connection.send(order, blob, on_reply)

    def ask(self, order: Mapping[str, Any], blob: bytes = b"", *, timeout_s: float = 60.0) -> Reply:
        """Send and wait. Raises LinkDown or OrderRefused; never called from the link's own thread."""
        connection = self._connection
        if connection is None:
            raise LinkDown(f"{self.host.name} is not connected")
        future: Future[Reply] = Future()
        connection.send(order, blob, future.set_result, future)
        try:
            reply = future.result(timeout_s)
        except TimeoutError as e:
            raise NoAnswer(f"{self.host.name} did not answer `{order['order']}` in {timeout_s:.0f} s") from e
        if reply.error is not None:
            raise OrderRefused(Problem(reply.error["code"], reply.error["message"], reply.error.get("hint")))
        return reply

    def reset(self, why: str) -> None:
        """Connect anew: the agent is there and does not do its work."""
        connection = self._connection
        if connection is not None:
            connection.break_off(why)

    def hold_off(self, seconds: float) -> None:
        """Break the connection, and make none for so long: `orch chaos` plays a cut."""
        with self._lock:
            self._held_until = time.monotonic() + seconds
        self.reset(f"orch chaos cut it off for {seconds:g} s")

    def close(self) -> None:
        """End the connection; what runs on the host goes on."""
        with self._lock:
            self._closed = True
            connection = self._connection
        self._wake.set()
        if connection is not None:
            connection.flush_and_close()

    def serves_others(self, run_id: str) -> bool:
        """Whether more runs than that one share it."""
        return any(served != run_id for served in self._served())

    @property
    def is_connected(self) -> bool:
        """Whether orders reach the agent now."""
        return self._connection is not None

    @property
    def hello(self) -> Mapping[str, Any]:
        """What the agent said first, of the connection that is there; empty without one."""
        connection = self._connection
        return connection.hello if connection is not None else {}

    # -- the link's thread ---------------------------------------------------------------------------------

    def _run(self) -> None:
        tries = 0
        while not self._closed:
            held_s = self._held_until - time.monotonic()
            if held_s > 0:
                self._wake.wait(held_s)
                continue
            began_at = time.monotonic()
            try:
                self._connect_and_read()
            except ConnectFailed as e:
                self._tell_down(e.message)
            except (FrameError, WireError) as e:
                log.warning("link %s: %s", self.host.name, e)
            except HostError as e:
                for run_id in self._served():
                    self._listener.refused(run_id, self.host.name, _problem(e))
                self._wake.wait(self._pace.refused_retry_s)
                continue
            except Exception:  # a fault of ours must not end the link for good: say it and try again
                log.exception("link %s", self.host.name)
                self._tell_down("a fault in orch; see the coordinator's log")
            if time.monotonic() - began_at > self._pace.steady_s:
                tries = 0
            delay = self._pace.retry_s[min(tries, len(self._pace.retry_s) - 1)]
            tries += 1
            self._wake.wait(delay * random.uniform(0.75, 1.25))

    def _connect_and_read(self) -> None:
        began_at = time.monotonic()
        channel = self._transport.open(self.host, bootstrap.COMMAND)
        connect_s = time.monotonic() - began_at
        connection: _Connection | None = None
        try:
            started = bootstrap.start_agent(channel, self.host, self._bundle())
            if connect_s > SLOW_CONNECT_S:
                slow = started.hello.setdefault("slow", {})
                slow["connect_s"] = round(connect_s, 1)
            connection = _Connection(self.host.name, channel, started.hello)
            with self._lock:
                if self._closed or self._held_until > time.monotonic():  # since while we were connecting
                    return
                self._connection = connection
                watches = dict(self._watches)
                for run_id, watch in watches.items():
                    self._watch(connection, run_id, watch)
            for run_id in watches:
                self._listener.up(run_id, self.host.name, started.hello)
            connection.start(self._silence_max_s, self._pace.silence_check_s)
            for message, blob in started.frames:
                self._take(connection, message, blob)
            self._read(connection, started.decoder)
        except (FrameError, WireError) as e:
            if connection is not None:
                connection.why = str(e)
            raise
        finally:
            with self._lock:
                broken, self._connection = self._connection, None
            channel.close()
            if broken is not None:
                broken.end()
                if not self._closed:
                    self._tell_down(broken.why or "the connection broke")

    def _read(self, connection: _Connection, decoder: Decoder) -> None:
        while data := connection.channel.read(READ_BYTES):
            connection.heard_at = time.monotonic()
            for message, blob in decoder.feed(data):
                self._take(connection, message, blob)

    def _take(self, connection: _Connection, message: Mapping[str, Any], blob: bytes) -> None:
        if "report" in message:
            for run_id in self._served():
                if run_id in message["report"]["runs"]:
                    self._listener.reported(run_id, self.host.name, message["report"], self)
        elif "reply" in message:
            connection.replied(message, blob)

    def _watch(self, connection: _Connection, run_id: str, watch: Watch) -> None:
        order = {"order": "watch", "run": run_id, "epoch": watch.epoch, "heartbeat_s": watch.heartbeat_s}
        connection.send(order, b"", None)

    def _served(self) -> list[str]:
        with self._lock:
            return list(self._watches)

    def _silence_max_s(self) -> float:
        with self._lock:
            return min((w.silence_max_s for w in self._watches.values()), default=60.0)

    def _tell_down(self, problem: str) -> None:
        for run_id in self._served():
            self._listener.down(run_id, self.host.name, problem)


class _Connection:
    """One connection, from hello to its end."""

    def __init__(self, host: str, channel: Channel, hello: Mapping[str, Any]) -> None:
        self.channel = channel
        self.hello = hello
        self.heard_at = time.monotonic()
        self.why: str | None = None
        self._host = host
        self._ids = itertools.count(1)
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._waiting: dict[int, tuple[Callable[[Reply], None] | None, Future[Reply] | None]] = {}
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
        order: Mapping[str, Any],
        blob: bytes,
        on_reply: Callable[[Reply], None] | None,
        future: Future[Reply] | None = None,
    ) -> None:
        number = next(self._ids)
        data = encode({**order, "id": number}, blob)
        with self._lock:
            if not self._ended.is_set():
                self._waiting[number] = (on_reply, future)
                self._outbox.put(data)
                return
        if future is not None:
            future.set_exception(self._broke())

    def replied(self, message: Mapping[str, Any], blob: bytes) -> None:
        on_reply, _ = self._waiting.pop(message["reply"], (None, None))
        if on_reply is not None:
            on_reply(Reply(ok=message.get("ok"), error=message.get("error"), blob=blob))

    def end(self) -> None:
        """Wake the writer and all who wait for a reply; who asks from now on is told at once."""
        with self._lock:
            self._ended.set()
            waiting = list(self._waiting.values())
        self._outbox.put(None)
        for _, future in waiting:
            if future is not None:
                future.set_exception(self._broke())

    def _broke(self) -> LinkDown:
        return LinkDown(f"the connection to {self._host} broke")

    def break_off(self, why: str) -> None:
        """Close it, which ends the reading; `why` is what the run is told."""
        self.why = self.why or why
        self.channel.close()

    def flush_and_close(self) -> None:
        """Close after what is queued has been written; the writer does it."""
        self._outbox.put(None)

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


def _problem(error: HostError) -> Problem:
    return Problem(error.code, error.message, error.hint, error.exit_code)


__all__ = ["PACE", "HostLink", "LinkDown", "Listener", "NoAnswer", "OrderRefused", "Pace", "Reply", "Watch"]
