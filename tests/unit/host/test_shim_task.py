"""How the shim looks for what a task leaves behind."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from orchestrator.both import process
from orchestrator.host.shim.task import TaskProcess

START = {"run": "r-20260101-1", "task": "worker:0", "generation": 1}


def test_a_process_that_ended_before_its_kill_asks_for_another_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = subprocess.Popen(["sleep", "600"])
    ended = process.identity(child.pid)
    assert ended is not None
    child.kill()
    child.wait()
    task = TaskProcess({**START, "host_dir": str(tmp_path)})
    monkeypatch.setattr(task, "_living", lambda: {ended})
    assert task.kill() is True  # it may have left a child of its own meanwhile
    monkeypatch.setattr(task, "_living", set)
    assert task.kill() is False
