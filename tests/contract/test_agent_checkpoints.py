"""A real agent and checkpoint directories: what people ask, hosts that share none, and a directory that hangs."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.daemon.agent import probe
from tests.contract.agent_harness import RUN, Client, clean, interpreter
from tests.contract.hanging_disk import hanging

FIXTURES = Path(__file__).parents[1] / "fixtures" / "checkpoints"


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Client]:
    host_dir = (tmp_path / "host").resolve()
    client = Client(host_dir)
    yield client
    client.close()
    clean(host_dir)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    directory = tmp_path / "c" / "gen-000001" / "manager"
    shutil.copytree(FIXTURES / "manager", directory)
    for place, path in enumerate(sorted(directory.iterdir())):  # a checkout writes all of them at once
        os.utime(path, (0, 1_700_000_000 + place))
    return tmp_path / "c"


def about(agent: Client, root: Path, do: str, what: str | None = None, python: str = sys.executable) -> Any:
    return agent.order("checkpoints", do=do, dir=str(root), what=what, python=python)


def test_a_person_lists_pins_and_goes_back_on_the_oldest_python_too(agent: Client, root: Path) -> None:
    python = interpreter("3.10") or sys.executable
    listed = about(agent, root, "list", python=python)["ok"]
    assert [found["global_step"] for found in listed["checkpoints"]] == [32, 24]
    assert about(agent, root, "pin", "24", python)["ok"]["already"] is False
    assert about(agent, root, "rollback", "24", python)["ok"]["set_aside"] == []
    seeded = agent.ok(
        "seed", generation=2, dir=str(root), python=python, keep=3, from_scratch=False, by={"host": "h"}
    )
    assert seeded["global_step"] == 24
    assert about(agent, root, "unpin", "24", python)["ok"]["checkpoint"]["pinned"] is False
    assert about(agent, root, "pin", "77")["error"]["code"] == "no-such-checkpoint"
    assert about(agent, root, "burn")["error"]["code"] == "bad-order"


@pytest.mark.fault(45)
def test_row_45_two_hosts_tell_of_one_directory_the_same_and_of_two_another(
    agent: Client, tmp_path: Path
) -> None:
    def share(directory: str) -> str:
        ask: dict[str, Any] = {"python": sys.executable, "script": "train.py", "ports": [1, 2]}
        return str(agent.ok("probe", checkpoint_dir=str(tmp_path / directory), **ask)["checkpoint_share"])

    assert share("one") == share("one") != share("two")


@pytest.mark.fault(44)
def test_row_44_a_directory_that_hangs_stops_no_heartbeat_and_is_told_of(agent: Client, root: Path) -> None:
    agent.ok("watch", heartbeat_s=0.1)
    with hanging(root):
        number = agent.send("verify", generation=1, dir=str(root), python=sys.executable)
        began_at, heard = time.monotonic(), len(agent.reports)
        while agent.reports[-1]["host"]["checkpoint_dirs"].get(RUN, {}).get("silent_s", 0.0) < 1.0:
            assert agent.hear()
        assert time.monotonic() - began_at < 10
        assert len(agent.reports) > heard + 5
        assert number not in agent.replies
        why, _ = probe.within(0.2, lambda: (probe.why_not_writable(str(root)), None))
        assert why == "it has not answered for 0 s"
    reply, _ = agent.answer(number)
    assert "Traceback" not in str(reply)
    again = agent.ok("verify", generation=1, dir=str(root), python=sys.executable)
    assert again["checkpoint"]["global_step"] == 32
