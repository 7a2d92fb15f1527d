"""A host directory with a real shim, to which a test talks as an agent does."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orchestrator
from orchestrator.both import process
from orchestrator.host.shim import main
from orchestrator.protocol.channel import Decoder, encode
from orchestrator.protocol.check import check_of
from orchestrator.protocol.reports import Task
from tests.patience import comes

PACKAGE_PARENT = str(Path(orchestrator.__file__).parent.parent)
SHIM = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from orchestrator.host.shim.main import main; sys.exit(main(sys.argv[1:]))"
)
RUNTIME = """
import json, os, runpy, socket, sys
link = socket.socket(fileno=int(os.environ["ORCH_FD"]))
def say(**message):
    link.sendall(json.dumps(message).encode() + b"\\n")
def hear():
    line = b""
    while not line.endswith(b"\\n"):
        byte = link.recv(1)
        if not byte:
            sys.exit(143)
        line += byte
    return json.loads(line)
assert sys.argv[1] == "run", sys.argv
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], {"say": say, "hear": hear}, run_name="__main__")
"""
"""The smallest possible runtime: the script itself sends with `say` and receives with `hear`."""


def until(what: Callable[[], Any], why: str, wait_s: float = 20.0) -> Any:
    """Poll `what`, and return its first true value. Fails with `why` after `wait_s`."""
    value = comes(what, wait_s, 0.005)
    assert value, f"waited {wait_s} s: {why}"
    return value


class Agent:
    """A connection to a shim."""

    def __init__(self, generation_dir: str) -> None:
        self.sock = main.connect(generation_dir, timeout_s=20.0)
        self.decoder = Decoder()
        self.reports: list[dict[str, Any]] = []
        self.replies: dict[int, dict[str, Any]] = {}
        self.number = 0

    def hear(self) -> bool:
        """Read what comes next. Return False at the end."""
        data = self.sock.recv(65536)
        for message, _ in self.decoder.feed(data):
            if "report" in message:
                self.reports.append(as_the_head_takes_it(message["report"]))
            else:
                self.replies[message["reply"]] = message
        return bool(data)

    def order(self, verb: str, **fields: Any) -> dict[str, Any]:
        """Send an order, and return its reply."""
        self.number += 1
        number = self.number
        self.sock.sendall(encode({"order": verb, "id": number, "epoch": 1, "generation": 2, **fields}))
        while number not in self.replies:
            assert self.hear(), f"the shim closed instead of answering {verb}"
        return self.replies[number]

    def until(self, what: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
        """Return the last report, or the first from now on, for which `what` is true."""
        seen = max(0, len(self.reports) - 1)
        while True:
            for report in self.reports[seen:]:
                if what(report):
                    return report
            seen = len(self.reports)
            assert self.hear(), f"the shim closed; last report: {self.reports[-1:]}"

    def until_phase(self, phase: str) -> dict[str, Any]:
        return self.until(lambda report: report["phase"] == phase)

    def until_closed(self) -> dict[str, Any]:
        """Read until the shim closes, and return the last report."""
        while self.hear():
            pass
        return self.reports[-1]


class Host:
    """A host directory with the code of a run, and one generation of a task."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.code = path / "runs" / "demo-1" / "code" / "abc"
        self.code.mkdir(parents=True)
        self.bundle = path / "bundle"
        self.bundle.mkdir()
        (self.bundle / "__main__.py").write_text(RUNTIME)
        self.generation_dir = path / "runs" / "demo-1" / "tasks" / "worker-0" / "gen-000002"
        self.generation_dir.mkdir(parents=True)
        self.identities: list[process.Identity] = []

    def write_start(self, script: str, **fields: Any) -> None:
        (self.code / "train.py").write_text(script)
        start: dict[str, Any] = {
            "host_dir": str(self.path),
            "bundle": str(self.bundle),
            "run": "demo-1",
            "epoch": 1,
            "generation": 2,
            "task": "worker:0",
            "python": sys.executable,
            "script": "train.py",
            "args": ["--epochs", "3"],
            "env": {},
            "code": "abc",
            "ports": [],
            "hold": False,
            "log_max_bytes": 1 << 20,
            "scratch": False,
        }
        (self.generation_dir / "start.json").write_text(json.dumps({**start, **fields}))

    def start(
        self,
        script: str,
        secrets: dict[str, str] | None = None,
        interpreter: str = sys.executable,
        **fields: Any,
    ) -> dict[str, Any]:
        """Start a shim as an agent does, and return its answer."""
        self.write_start(script, **fields)
        return self.start_again(secrets, interpreter)

    def start_again(
        self, secrets: dict[str, str] | None = None, interpreter: str = sys.executable
    ) -> dict[str, Any]:
        done = subprocess.run(
            [interpreter, "-I", "-S", "-c", SHIM, PACKAGE_PARENT, str(self.generation_dir)],
            input=json.dumps(secrets or {}) + "\n",
            stdout=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
        answer: dict[str, Any] = json.loads(done.stdout)
        who = shim_pid(answer)
        if who is not None:
            self.identities.append(who)
        return answer

    def agent(self) -> Agent:
        return Agent(str(self.generation_dir))

    def run(self, script: str, **fields: Any) -> Agent:
        """Start a task, connect to its shim, and release it as soon as it is ready."""
        answer = self.start(script, **fields)
        assert "pid" in answer, answer
        agent = self.agent()
        agent.until_phase("ready")
        assert agent.order("release", env={})["ok"] == {}
        return agent

    def log(self) -> list[str]:
        """Return all lines of the log, without their times."""
        lines = []
        for name in ("log.3", "log.2", "log.1", "log"):
            path = self.generation_dir / name
            if path.exists():
                lines += [line.split(" ", 1)[1] for line in path.read_text().splitlines()]
        return lines

    def clean(self) -> None:
        """Kill what the test has left, by identity."""
        found = process.marked("demo-1", range(10**6), host_dir=str(self.path))
        for who in [*self.identities, *found]:
            process.signal(who, signal.SIGKILL)
        errors = self.generation_dir / "shim.err"
        assert not errors.exists() or errors.read_text() == ""


def as_the_head_takes_it(task: Any) -> dict[str, Any]:
    """Return a TASK, which must be one of the protocol, with nothing in it that the protocol does not know."""
    told: dict[str, Any] = json.loads(json.dumps(task))
    assert check_of(Task)(told).keys() == told.keys()
    return told


def shim_pid(answer: dict[str, Any]) -> process.Identity | None:
    return process.identity(answer["pid"]) if "pid" in answer else None


def gone(pid: int) -> bool:
    """Return whether no process has that pid."""
    return process.identity(pid) is None


def read_pid(path: Path) -> int:
    """Wait until a script has written its pid to a file, and return the pid."""
    text: str = until(
        lambda: path.exists() and path.read_text().endswith("\n") and path.read_text(), f"{path}"
    )
    return int(text)
