"""An agent of its own process over stdin and stdout, which floods its head in one of several ways.

A host whose `python` is a script that starts this module has such an agent: see `stand_in`. It passes for a real one
until its tasks are started.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from orchestrator.core.plan import HostPlan
from orchestrator.protocol.reports import Task
from tests.contract.fake_agent import FACTS, TREE, FakeAgent, always
from tests.fake_transport import FakeProcess

LINE = b"1763800000.000000 o " + b"x" * 1003 + b"\n"


def stand_in(path: Path, style: str) -> str:
    """Write a script that starts this agent whatever it is told to do, and return its path."""
    root = Path(__file__).parents[2]
    path.write_text(
        f"#!/bin/sh\nPYTHONPATH={root} exec {sys.executable} -m tests.contract.flooding_agent {style}\n"
    )
    path.chmod(0o755)
    return str(path)


class _Stream:
    """A descriptor as the ends of a FakeProcess are."""

    def __init__(self, descriptor: int, taken: bytes = b"") -> None:
        self._descriptor = descriptor
        self._taken = taken
        """What somebody else has read from it, and is read again."""
        self._lock = threading.Lock()

    def read(self, size: int) -> bytes:
        taken, self._taken = self._taken, b""
        return taken or os.read(self._descriptor, size)

    def write(self, data: bytes) -> None:
        with self._lock:
            while data:
                data = data[os.write(self._descriptor, data) :]


Reports = Iterator[list[Task]]


def _running(order: dict[str, Any], **changes: Any) -> Task:
    told: dict[str, Any] = {
        "task": order["task"],
        "generation": order["generation"],
        "phase": "running",
        "pid": 4242,
        **changes,
    }
    return told  # type: ignore[return-value]


def honest(order: dict[str, Any]) -> Reports:
    """Say the time as the step, and every two seconds as a sentence too: whoever reads it sees how late it is."""
    said: list[dict[str, str]] = []
    for count in range(1 << 30):
        now = time.time()
        if count % 10 == 0:
            said = [*said, {"kind": "said", "message": f"it is {now:.3f}"}][-3:]
        yield [_running(order, global_step=int(now * 1000), said=said)]
        time.sleep(0.2)


def pids(order: dict[str, Any]) -> Reports:
    """Report two processes in turn: each report must be journaled, if it is believed."""
    for count in range(1 << 30):
        yield [_running(order, pid=4242 + count % 2)]


def sentences(order: dict[str, Any]) -> Reports:
    """Say twenty new sentences in each report."""
    for count in range(1 << 30):
        said = [{"kind": "said", "message": f"{count} {number} {'x' * 1900}"} for number in range(20)]
        yield [_running(order, said=said)]


def names(order: dict[str, Any]) -> Reports:
    """Report new metrics and new tasks, which have logs, each time."""
    for count in range(1 << 30):
        metrics = {f"metric {count} {number}": 1.0 for number in range(64)}
        others = [
            _running({"task": f"worker:{count * 20 + number}", "generation": count}, log_bytes=1 << 40)
            for number in range(20)
        ]
        yield [_running(order, metrics=metrics), *others]


def logs(order: dict[str, Any]) -> Reports:
    """Report a log without end."""
    while True:
        yield [_running(order, log_bytes=1 << 40)]
        time.sleep(0.5)


STYLES: dict[str, Callable[[dict[str, Any]], Reports]] = {
    style.__name__: style for style in (honest, pids, sentences, names, logs)
}


def main(style: str) -> None:
    """Be the agent until stdin ends."""
    agent = FakeAgent()
    agent.answers = {
        "probe": always(FACTS),
        "code": always({"digest": TREE, "missing": []}),
        "sweep": always({"left": [], "ports_busy": [], "by": "cgroup"}),
        "log": lambda order, _: (
            {"offset": order["offset"], "end": 1 << 40, "time": 1.7e9},
            (LINE * (order["bytes_max"] // len(LINE) + 1))[: order["bytes_max"]],
        ),
    }

    def flood() -> None:
        order = agent.wait_order("start", timeout_s=60.0)
        run = order["run"]
        for tasks in STYLES[style](order):
            agent.report({run: tasks})

    threading.Thread(target=flood, daemon=True).start()
    python = _Stream(0, b"exit 97\norch-python what the shell has read\n")
    plan = HostPlan(name=style, transport="local", address=style)
    agent.program(FakeProcess(plan, python, _Stream(1), lambda _: None))  # type: ignore[arg-type]
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
