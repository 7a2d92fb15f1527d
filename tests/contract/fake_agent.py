"""An agent in memory, at the other end of a FakeTransport. It says hello, answers as configured, and reports."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from orchestrator.core.plan import HostPlan
from orchestrator.head.code.bundle import Archive, Bundle
from orchestrator.head.links import bootstrap
from orchestrator.head.reach.transport import ChannelClosed
from orchestrator.protocol.channel import Decoder, encode
from orchestrator.protocol.check import Asked
from orchestrator.protocol.hello import Hello
from orchestrator.protocol.orders.preparation import Facts
from orchestrator.protocol.reports import Report, Task, Unkillable
from tests.fake_transport import FakeProcess, FakeTransport
from tests.patience import comes
from tests.protocol_orders import BY_NAME
from tests.protocol_values import valid

SOON_S = 15.0

BUNDLE = Bundle(code=Archive("0" * 64, b"zip"), psutil=None, platform="test")


FACTS: Facts = {
    "python": "3.11.2",
    "versions": {"tensorflow": "2.21.0"},
    "checkpoint_writable": True,
    "checkpoint_why": None,
    "checkpoint_share": None,
    "gpus": None,
    "gpus_why": None,
    "gpus_in_use": [],
    "own_name": {"name": "here", "address": "10.0.0.1", "why": None},
    "unkillable": [],
}
"""A host that can train anything."""

TREE = "c0de" * 16
"""The digest of some code."""


class Refusal:
    """An error reply."""

    def __init__(self, code: str, message: str) -> None:
        self.document: dict[str, Any] = {"code": code, "message": message, "hint": None}


Said = Mapping[str, Any] | tuple[Mapping[str, Any], bytes] | Refusal | None
Answer = Callable[[dict[str, Any], bytes], Said]


def always(answer: Said) -> Answer:
    """Give the same answer to every order; None is no answer."""
    return lambda *_: answer


class FakeAgent:
    """The agent of a host. A thread of the transport serves each connection."""

    def __init__(self) -> None:
        self.orders: list[dict[str, Any]] = []
        self.answers: dict[str, Answer] = {}
        """The answers by verb. A verb without one gets a value of its type, made from the table; None: no answer."""
        self.boot_id = "boot-1"
        self.connected_at: list[float] = []
        self.dies_at_once = False
        self.lies: dict[str, Any] = {}
        """What of its hello is something else."""
        self.unkillable: list[Unkillable] = []
        self.last_words = b""
        """What it writes to stderr when it dies."""
        self.session: FakeProcess | None = None
        self._changed = threading.Condition()
        self._writing = threading.Lock()
        """Whole frames: the test and the thread of the connection write beside each other."""

    def verbs(self, *, since: int = 0) -> list[str]:
        return [order["order"] for order in self.orders[since:]]

    def wait_order(self, verb: str, *, count: int = 1, timeout_s: float = SOON_S) -> dict[str, Any]:
        """Wait for the `count`th order of that verb, and return it."""

        def found() -> list[dict[str, Any]]:
            return [order for order in self.orders if order["order"] == verb]

        with self._changed:
            assert self._changed.wait_for(lambda: len(found()) >= count, timeout_s), (
                f"no {verb}: {self.verbs()}"
            )
        return found()[count - 1]

    def report(self, runs: Mapping[str, list[Task]], *, cpu_percent: float = 1.0) -> None:
        """Send a heartbeat over the newest connection."""
        report: Report = {
            "host": {
                "cpu_percent": cpu_percent,
                "memory_percent": 9.0,
                "disk_free_bytes": 1 << 40,
                "psutil": "bundle",
                "checkpoint_dirs": {},
                "unkillable": self.unkillable,
            },
            "runs": dict(runs),
        }
        self.send({"report": report})

    def send(self, message: Mapping[str, Any]) -> None:
        assert self.session is not None
        with self._writing:
            self.session.stdout.write(encode(message))

    def say(self, junk: bytes) -> None:
        """Send bytes that no agent would send."""
        assert self.session is not None
        self.session.stdout.write(junk)

    def die(self) -> None:
        """Kill the agent's process. Its host and tasks live on."""
        session, self.session = self.session, None
        if session is not None:
            session.write_stderr(self.last_words)
            session.stdout.end()
            session.stdin.break_()

    # -- the program -----------------------------------------------------------------------------------------

    def program(self, process: FakeProcess) -> int:
        """Run the agent: the transport calls this for bootstrap.COMMAND."""
        reader = _Reader(process)
        process.stdout.write(b"orch-shell\n")
        assert reader.line().startswith(b"exit "), "for another shell than ours"
        assert reader.line().startswith(b"orch-python ")
        reader.exactly(int(reader.line()))
        request = json.loads(reader.line())
        mark = request["nonce"][::-1]
        process.stdout.write(f'\n{mark} {{"ok": true}}\n'.encode())
        hello: dict[str, Any] = {
            **valid(Hello),
            "digest": request["digest"],
            "boot_id": self.boot_id,
            "hostname": process.host.name,
            "psutil_wanted": False,
            "warning": None,
        }
        process.stdout.write(encode({"hello": {**hello, **self.lies}}))
        with self._changed:
            self.session = process
            self.connected_at.append(time.monotonic())
            self._changed.notify_all()
        if self.dies_at_once:
            return 1
        decoder = Decoder()
        data = reader.rest()
        while True:
            for order, blob in decoder.feed(data):
                self._handle(process, order, blob)
            data = process.stdin.read(1 << 16)
            if not data:
                return 0

    def _handle(self, process: FakeProcess, order: dict[str, Any], blob: bytes) -> None:
        with self._changed:
            self.orders.append(order)
            self._changed.notify_all()
        default = always(valid(BY_NAME[order["order"]].answer, Asked.of(order)))
        answer = self.answers.get(order["order"], default)(order, blob)
        if answer is None or order.get("id") is None:
            return
        with self._writing:
            process.stdout.write(_reply(order["id"], answer))


def _reply(order_id: int, answer: Any) -> bytes:
    if isinstance(answer, Refusal):
        return encode({"reply": order_id, "error": answer.document})
    if isinstance(answer, tuple):
        return encode({"reply": order_id, "ok": answer[0]}, answer[1])
    return encode({"reply": order_id, "ok": answer})


class _Reader:
    def __init__(self, process: FakeProcess) -> None:
        self._process = process
        self._data = b""

    def _more(self) -> None:
        data = self._process.stdin.read(1 << 16)
        if not data:
            raise ChannelClosed("the head has gone")
        self._data += data

    def line(self) -> bytes:
        while b"\n" not in self._data:
            self._more()
        line, _, self._data = self._data.partition(b"\n")
        return line

    def exactly(self, count: int) -> bytes:
        while len(self._data) < count:
            self._more()
        taken, self._data = self._data[:count], self._data[count:]
        return taken

    def rest(self) -> bytes:
        data, self._data = self._data, b""
        return data


class FakeHosts:
    """Hosts with one agent each, behind one transport."""

    def __init__(self, *names: str) -> None:
        self.plans = {name: HostPlan(name=name, transport="fake", address=name) for name in names}
        self.agents = {name: FakeAgent() for name in names}
        self.transport = FakeTransport({bootstrap.COMMAND: self._program})

    def _program(self, process: FakeProcess) -> int:
        return self.agents[process.host.name].program(process)

    def cut(self, name: str) -> None:
        self.transport.cut(self.plans[name])

    def heal(self, name: str) -> None:
        self.transport.heal(self.plans[name])


def until(condition: Callable[[], object], what: str = "", *, timeout_s: float = SOON_S) -> None:
    """Poll until the condition holds. Raises AssertionError after `timeout_s`."""
    assert comes(condition, timeout_s, 0.005), what or "it did not come"
