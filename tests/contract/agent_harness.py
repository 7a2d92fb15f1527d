"""A host with a real agent, to which a test talks over real pipes as the coordinator does."""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from orchestrator.both import process
from orchestrator.core.plan import HostPlan
from orchestrator.head.code import bundle, compiled
from orchestrator.head.links import bootstrap, edge
from orchestrator.head.links.requests import psutil
from orchestrator.head.reach.local import LocalChannel, LocalTransport
from orchestrator.head.reach.transport import Channel
from orchestrator.protocol.channel import encode
from orchestrator.protocol.orders.base import Order
from tests.protocol_orders import BY_NAME, as_sent
from tests.pythons import python

RUN = "demo-20260101-1"


def interpreter(version: str) -> str | None:
    """Return the path of a Python of that version on this machine; None where there is none."""
    if f"{sys.version_info[0]}.{sys.version_info[1]}" == version:
        return sys.executable
    return python(version)


def push_psutil(channel: Channel) -> None:
    """Push psutil as the head does, and at once."""
    for order, part in psutil(compiled.psutil()):
        channel.write(encode(order.fields, part))


class Client:
    """A connection to a new agent."""

    def __init__(
        self,
        host_dir: Path,
        python: str = sys.executable,
        heartbeat_s: float = 0.1,
        channel: Channel | None = None,
        pushed: bundle.Bundle | None = None,
    ) -> None:
        """Connect to a host directory; `pushed`: our code as the host gets it, None for that of this tree."""
        self.host = HostPlan("gpu-a", transport="local", python=python)
        channel = channel or LocalTransport().open(self.host, bootstrap.COMMAND)
        assert isinstance(channel, LocalChannel)
        self.channel = channel
        self.started = bootstrap.start_agent(
            channel, self.host, pushed or bundle.load(), heartbeat_s=heartbeat_s, host_dir=str(host_dir)
        )
        self.hello = self.started.hello
        if self.hello["psutil_wanted"]:
            push_psutil(channel)
        self.reports: list[dict[str, Any]] = []
        self.replies: dict[int, tuple[dict[str, Any], bytes]] = {}
        self.number = 0
        self.orders: dict[int, Order[Any]] = {}
        self._take(self.started.frames)

    @property
    def pid(self) -> int:
        return self.channel._child.pid

    def _take(self, frames: list[tuple[dict[str, Any], bytes]]) -> None:
        """Take frames in. What a real agent says must be what the head takes: each frame is checked."""
        for message, blob in frames:
            frame = edge.frame(self.host.name, message, blob)
            if "report" in frame:
                self.reports.append(message["report"])
                continue
            order = self.orders.get(message["reply"])
            if "ok" in frame and order is not None:
                ok = edge.answer(self.host.name, order, frame["ok"], blob)
                assert ok.keys() == message["ok"].keys(), "it says nothing that is not in the protocol"
            self.replies[message["reply"]] = (message, blob)

    def hear(self) -> bool:
        """Read what comes next. Return False at the end."""
        data = self.channel.read(1 << 16)
        self._take(self.started.decoder.feed(data))
        return bool(data)

    def send(self, verb: str, blob: bytes = b"", **fields: Any) -> int:
        """Send an order, and return its id."""
        self.number += 1
        order = as_sent(verb, {"id": self.number, "epoch": 1, "run": RUN, **fields})
        if verb in BY_NAME:
            self.orders[self.number] = Order(BY_NAME[verb], order)
        self.channel.write(encode(order, blob))
        return self.number

    def order(self, verb: str, blob: bytes = b"", **fields: Any) -> dict[str, Any]:
        """Send an order, and return its reply."""
        return self.answer(self.send(verb, blob, **fields))[0]

    def answer(self, number: int) -> tuple[dict[str, Any], bytes]:
        """Return the reply to the order of that id, and its blob."""
        while number not in self.replies:
            assert self.hear(), f"the agent ended: {self.channel.stderr_tail()}"
        return self.replies[number]

    def ok(self, verb: str, blob: bytes = b"", **fields: Any) -> dict[str, Any]:
        """Send an order that must be obeyed, and return the answer."""
        reply = self.order(verb, blob, **fields)
        assert "ok" in reply, reply
        value: dict[str, Any] = reply["ok"]
        return value

    def error(self, verb: str, blob: bytes = b"", **fields: Any) -> str:
        """Send an order that must be refused, and return the error's code."""
        reply = self.order(verb, blob, **fields)
        assert "error" in reply, reply
        assert "Traceback" not in reply["error"]["message"]
        return str(reply["error"]["code"])

    def until(self, what: Callable[[list[dict[str, Any]]], Any]) -> list[dict[str, Any]]:
        """Return the run's tasks in the first report from now on for which `what` is true."""
        seen = len(self.reports)
        while True:
            for report in self.reports[seen:]:
                tasks: list[dict[str, Any]] = report["runs"].get(RUN, [])
                if what(tasks):
                    return tasks
            seen = len(self.reports)
            assert self.hear(), f"the agent ended; last report: {self.reports[-1:]}"

    def until_phase(self, phase: str) -> dict[str, Any]:
        """Wait until the run's only task is in that phase, and return the task."""
        return self.until(lambda tasks: [task["phase"] for task in tasks] == [phase])[0]

    def push(self, **files: str) -> str:
        """Push code, in which each keyword is a script. Return its digest."""
        content = {f"{name}.py": text.encode() for name, text in files.items()}
        entries = [
            [path, hashlib.sha256(data).hexdigest(), 0o644, len(data)] for path, data in content.items()
        ]
        for path, sha256, _, _ in entries:
            self.ok("blob", content[str(path)], sha256=sha256, offset=0, last=True)
        answer = self.ok("code", files=entries)
        assert answer["missing"] == []
        return str(answer["digest"])

    def start(self, code: str, script: str = "train.py", **fields: Any) -> dict[str, Any]:
        """Order a task without the runtime, and return the reply. The generation is 1 unless the fields change it."""
        return self.order("start", **{**self.plain_task(code, script), **fields})

    def plain_task(self, code: str, script: str = "train.py") -> dict[str, Any]:
        """Return the fields of such an order."""
        return {
            "generation": 1,
            "task": "worker:0",
            "python": sys.executable,
            "script": script,
            "args": [],
            "env": {},
            "secrets": {},
            "code": code,
            "ports": [],
            "hold": False,
            "log_max_bytes": 1 << 20,
            "scratch": False,
        }

    def close(self) -> None:
        """End the agent as a closing connection does, and wait for it."""
        self.channel.close()
        self.channel._child.wait(20)


@contextmanager
def client_in(directory: Path) -> Iterator[Client]:
    """Yield a client of a new agent whose host directory is below `directory`; at the end nothing of it is left."""
    host_dir = (directory / "host").resolve()
    client = Client(host_dir)
    yield client
    client.close()
    clean(host_dir)


def clean(host_dir: Path) -> None:
    """Kill everything that the test has left running."""
    from orchestrator.host.shim import record as shim_record

    give_up_at = time.monotonic() + 10
    while time.monotonic() < give_up_at:
        found = process.marked(RUN, range(1 << 30), host_dir=str(host_dir))
        for start in host_dir.glob("runs/*/tasks/*/*/shim.json"):
            who = shim_record.shim_identity(str(start.parent))
            if who is not None and process.alive(who):
                found.append(who)
        if not found:
            return
        for who in found:
            process.signal(who, 9)
        time.sleep(0.01)
