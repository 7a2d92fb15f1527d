"""The end of a shim whose task leaves a process that no kill ends."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from orchestrator.both import process
from orchestrator.host.shim import record
from orchestrator.host.shim.loop import Shim
from orchestrator.host.shim.state import Ended
from orchestrator.host.system import unkillable

RUN = "t-20260101-1"


@pytest.mark.parametrize("is_left", [True, False])
def test_what_no_kill_ends_is_remembered_for_the_runs_that_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_left: bool
) -> None:
    """Its GPU stays in use, and its port: the next run on this host must hear of it from whoever asks."""
    generation = tmp_path / "gen-000001"
    generation.mkdir()
    start: dict[str, Any] = {"run": RUN, "task": "worker:0", "generation": 1, "epoch": 1, "hold": True}
    start |= {"host_dir": str(tmp_path), "log_max_bytes": 1 << 20}
    shim = Shim(str(generation), start, {}, None)
    record.keep_room(str(generation))
    (generation / "sock").touch()
    with subprocess.Popen(["sleep", "600"]) as child:
        try:
            who = process.identity(child.pid)
            assert who is not None
            monkeypatch.setattr(shim._process, "_living", lambda: {who})
            left = tuple(shim._process.left()) if is_left else ()
            shim._state = shim._state.replace(ended=Ended(1.0, 0), left=left)
            shim._record()
            known = unkillable.known(str(tmp_path))
        finally:
            child.kill()
    assert [(one["run"], one["pid"]) for one in known] == ([(RUN, child.pid)] if is_left else [])
    task = record.read_exit(str(generation))
    assert task is not None
    assert task["exit"] is not None
    assert len(task["exit"]["left"]) == is_left
