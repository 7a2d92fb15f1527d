"""A person at a desk: calls commands, and sees what they print."""

from __future__ import annotations

from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

from orchestrator.cli.main import run
from orchestrator.cli.session import Session
from tests.contract.fake_api import FakeApi

RUN = "mnist-20261120-1"
SPEC = """\
version: 1
name: mnist
hosts:
  - {name: here, transport: local, slots: 2}
run:
  strategy: multi_worker_mirrored
  script: train.py
  workdir: .
  tasks: {worker: {replicas: 2}}
  ports: 20000-20999
"""
WHY = {"task": "worker:1", "generation": 1, "sentence": "worker:1 was killed", "last_lines": ["also"]}


class Desk(Session):
    """A session without a terminal, whose time passes only in its pauses."""

    def __init__(self, root: Path) -> None:
        environ = {"ORCH_STATE_DIR": str(root / "state"), "ORCH_RUNTIME_DIR": str(root / "run")}
        self.stdout, self.stderr = StringIO(), StringIO()
        super().__init__(self.stdout, self.stderr, environ)
        self.clock = 0.0
        self.on_pause: Callable[[], None] = lambda: None

    def pause(self, seconds: float) -> None:
        self.clock += seconds
        self.on_pause()

    def now(self) -> float:
        return self.clock

    def time(self) -> float:
        return 1000.0

    def __call__(self, *argv: str) -> int:
        return run(argv, self)

    @property
    def said(self) -> str:
        return self.stderr.getvalue()

    @property
    def put_out(self) -> str:
        return self.stdout.getvalue()


def phases(api: FakeApi, *changes: dict[str, Any]) -> None:
    """Each look at the status finds the next change; the last one stays."""
    left = list(changes)

    def advance() -> None:
        if left:
            api.runs[-1].update(left.pop(0))

    api.on_status = advance
