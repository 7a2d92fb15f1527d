"""What an agent says of its machine: the GPUs as nvidia-smi prints them, and who is on them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import cast

import pytest

from orchestrator.both import logind
from orchestrator.host.agent import gpus, machine
from orchestrator.host.agent.host import Host
from orchestrator.host.system import cgroup
from orchestrator.protocol.hello import BootRequest

SMI = """#!/bin/sh
case "$1" in
-L) echo 'GPU 0: A (UUID: GPU-1)'; echo 'GPU 1: A (UUID: GPU-2)';;
--query-gpu=uuid,*) echo "GPU-2, NVIDIA H200, 0 %, 5 MiB, 143771 MiB"
  echo "GPU-1, NVIDIA A100, 80GB, 97 %, [N/A], 81920 MiB";;
--query-compute-apps=*) echo "{pid}, GPU-1, python";;
esac
"""


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    tool = tmp_path / "nvidia-smi"
    tool.write_text(SMI.replace("{pid}", str(os.getpid())))
    tool.chmod(0o755)
    return tool


def test_gpus_come_with_their_use_and_who_uses_them(smi: Path, tmp_path: Path) -> None:
    first, second = machine.inspect(str(tmp_path))["gpus"]
    assert first["processes"][0]["pid"] == os.getpid()
    assert (first["name"], first["utilization_percent"]) == ("NVIDIA A100, 80GB", 97.0)
    assert (first["memory_used_bytes"], first["memory_total_bytes"]) == (None, 81920 << 20)
    assert second == {
        "index": 1,
        "uuid": "GPU-2",
        "name": "NVIDIA H200",
        "utilization_percent": 0.0,
        "memory_used_bytes": 5 << 20,
        "memory_total_bytes": 143771 << 20,
        "processes": [],
    }


def test_a_tool_that_fails_at_the_second_question_leaves_the_gpus_nameless(smi: Path, tmp_path: Path) -> None:
    smi.write_text('#!/bin/sh\n[ "$1" = -L ] && echo "GPU 0: A (UUID: GPU-1)" || exit 9\n')
    [found] = machine.inspect(str(tmp_path))["gpus"]
    assert (found["name"], found["memory_total_bytes"], found["processes"]) == ("", None, [])


def test_a_machine_without_gpus_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(gpus, "_OTHER_DRIVERS", ())
    found = machine.inspect(str(tmp_path))
    assert (found["gpus"], found["gpus_why"]) == ([], "there is no nvidia-smi and no device of a GPU")
    assert found["cpus"] >= 1
    assert found["memory_free_bytes"]
    assert found["disk_total_bytes"]


@pytest.mark.parametrize("can_leave", [True, False])
def test_what_a_logout_would_end_is_told_by_whether_tasks_can_leave_the_login(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_leave: bool
) -> None:
    monkeypatch.setattr(cgroup, "_ROOTS", ())
    monkeypatch.setattr(cgroup, "can_leave_login", lambda: can_leave)
    monkeypatch.setattr(logind, "ends_tasks", lambda user, *, can_leave: f"{user}: {can_leave}")
    request = cast("BootRequest", {"digest": "d", "psutil": None, "psutil_platform": ""})
    assert Host(str(tmp_path), "", request).hello()["warning"] == f"{logind.user_name()}: {can_leave}"
