"""What a host tells of the runs that it remembers."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from orchestrator.both import process
from orchestrator.both.hostdir import HostFault
from orchestrator.checkpoints import claims
from orchestrator.host.agent import runs as agent_runs
from orchestrator.host.shim.record import write_exit
from orchestrator.host.shim.report import blank_task, ended_task
from orchestrator.protocol.channel import encode
from orchestrator.protocol.check import check_of
from orchestrator.protocol.orders.driving import Claim, KnownRuns
from orchestrator.protocol.reports import TaskExit

CLAIM: Claim = {
    "id": "1" * 32,
    "head": "head-1",
    "user": "ml",
    "run": "t-20260101-000000",
    "name": "t",
    "checkpoint_dir": "/shared/t",
}

EXIT: TaskExit = {"cause": "script", "code": None, "signal": None, "ago_s": 0.0, "released": False}


def test_of_runs_that_are_over_a_line_each_is_told_of_their_ends(tmp_path: Path) -> None:
    """Or the answer of a host that remembers many would fit into no frame, and the host would count as unheard."""
    for number in range(30):
        run = f"t-20260101-{number:06d}"
        for index in range(8):
            directory = tmp_path / "runs" / run / "tasks" / f"worker-{index}" / "gen-000001"
            directory.mkdir(parents=True)
            start = {"task": f"worker:{index}", "generation": 1}
            lines = [f"{n} " + "x" * 4000 for n in range(20)]
            ended = ended_task(blank_task(start), {**EXIT, "code": 1, "last_lines": lines})
            write_exit(str(directory), ended, 0.0)
    found = agent_runs.known(str(tmp_path), records=False)
    assert len(encode({"reply": 1, "ok": found})) < 1 << 20
    told = check_of(KnownRuns)(json.loads(json.dumps(found)))["runs"]
    assert [len(run["tasks"]) for run in told] == [8] * 30
    assert told[0]["tasks"][0]["exit"]["last_lines"] == ["19 " + "x" * 197]
    assert told[0]["bytes"] > 0
    brief = agent_runs.known(str(tmp_path), records=False, brief=True)["runs"]
    assert [(run["bytes"], run["age_s"], run["tasks"]) for run in brief] == [(0, None, [])] * 30


def test_directories_that_are_no_runs_or_tasks_hide_nothing(tmp_path: Path) -> None:
    run = "t-20260101-000000"
    for name in (run, "-x", "old\x1b[2J", ".x.forgotten", "a copy"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    for name in ("worker-0", "worker-0.bak", "notes", "-5"):
        (tmp_path / "runs" / run / "tasks" / name / "gen-000001").mkdir(parents=True)
    found = agent_runs.known(str(tmp_path), records=True)
    told = check_of(KnownRuns)(json.loads(json.dumps(found)))["runs"]
    assert [one["run"] for one in told] == ["a copy", run]
    assert [task["task"] for task in told[1]["tasks"]] == ["worker:0"]


def test_records_of_dead_runs_are_told_as_far_as_a_frame_has_room(tmp_path: Path) -> None:
    host_dir = str(tmp_path)
    for run, size in (("t-20260101-000000", 10), ("t-20260101-000001", 2 << 20)):
        (tmp_path / "runs" / run).mkdir(parents=True)
        agent_runs.keep(host_dir, run, {"epoch": 1, "written_at": 1.0, "state": "x" * size})
    (tmp_path / "runs" / "t-20260101-000002").mkdir()
    told = {one["run"][-1]: one["record"] for one in agent_runs.known(host_dir, records=True)["runs"]}
    assert told["0"]["state"] == "x" * 10
    assert (told["1"], told["2"]) == (None, None)
    assert [one["record"] for one in agent_runs.known(host_dir, records=False)["runs"]] == [None] * 3


def test_a_run_that_an_agent_watches_is_not_removed_without_a_word(tmp_path: Path) -> None:
    host_dir, run = str(tmp_path), "t-20260101-000000"
    (tmp_path / "runs" / run).mkdir(parents=True)
    driving = agent_runs.Watched(host_dir)
    driving.renew({run: CLAIM})
    for owner in ("another", CLAIM["id"]):
        with pytest.raises(HostFault, match=f"{run} of ml@head-1 is driven now"):
            agent_runs.remove(host_dir, run, owner=owner, even_alive=False)
    assert (tmp_path / "runs" / run).exists()
    driving.release(run)
    assert agent_runs.remove(host_dir, run, owner="another", even_alive=False) == {}
    assert not (tmp_path / "runs" / run).exists()


def test_a_run_that_was_driven_a_moment_ago_is_removed_by_its_owner_alone(tmp_path: Path) -> None:
    host_dir, run = str(tmp_path), CLAIM["run"]
    directory = tmp_path / "runs" / run
    directory.mkdir(parents=True)
    gone = {**CLAIM, "since": 1.0, "agent": DEAD}
    looked_at = time.clock_gettime(time.CLOCK_BOOTTIME) - 20.0
    (directory / claims.FILE).write_text(json.dumps({**gone, "looked_at": looked_at}))
    with pytest.raises(HostFault, match=r"of ml@head-1 was driven 2\d s ago"):
        agent_runs.remove(host_dir, run, owner="another", even_alive=False)
    assert directory.exists()
    assert agent_runs.remove(host_dir, run, owner=CLAIM["id"], even_alive=False) == {}
    assert not directory.exists()


def test_whose_a_run_is_and_since_when_is_told_as_long_as_its_directory_is_there(tmp_path: Path) -> None:
    host_dir, run = str(tmp_path), CLAIM["run"]
    (tmp_path / "runs" / run).mkdir(parents=True)
    driving = agent_runs.Watched(host_dir)
    driving.renew({run: CLAIM})
    (first,) = agent_runs.known(host_dir, records=False, brief=True)["runs"]
    assert first["claim"] is not None
    assert {**CLAIM, "since": first["claim"]["since"]} == first["claim"]
    assert (first["watched"], first["driven"], first["watched_ago_s"]) == (True, True, 0.0)
    agent_runs.Watched(host_dir).renew({run: {**CLAIM, "id": "0" * 32, "head": "head-2"}})
    (second,) = agent_runs.known(host_dir, records=False, brief=True)["runs"]
    assert second["claim"] is not None
    assert second["claim"]["head"] == "head-2"
    assert second["claim"]["since"] > first["claim"]["since"]
    driving.release(run)
    (over,) = agent_runs.known(host_dir, records=False, brief=True)["runs"]
    assert (over["watched"], over["driven"], over["watched_ago_s"]) == (False, False, None)
    assert over["claim"] == second["claim"], "whose it was stays known"


DEAD = {"boot_id": process.boot_id(), "pid": 1 << 22, "start_time": 1}


@pytest.mark.parametrize(
    ("ago_s", "agent", "driven"),
    [
        (10.0, DEAD, True),
        (claims.DRIVEN_S - 5, DEAD, True),
        (claims.DRIVEN_S + 5, DEAD, False),
        (1e9, {**DEAD, "boot_id": "another"}, False),
        (10.0, {**DEAD, "boot_id": "another"}, False),
    ],
)
def test_a_run_was_driven_a_moment_ago_by_the_clock_of_its_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ago_s: float, agent: dict[str, Any], driven: bool
) -> None:
    """The clock is that since the boot: before the last boot, it was at least as long ago as the host is up."""
    monkeypatch.setattr(claims, "_up_s", lambda: 5000.0)
    (tmp_path / claims.FILE).write_text(
        json.dumps({**CLAIM, "since": 1.0, "agent": agent, "looked_at": 5000 - ago_s})
    )
    claim, watched, told_s = claims.read(str(tmp_path))
    assert claim is not None
    assert not watched
    assert told_s is not None
    assert (told_s < claims.DRIVEN_S) is driven


@pytest.mark.parametrize("content", ["", "\0" * 300, "[]", '{"id": 5}', '{"agent": {"pid": "x"}}'])
def test_a_damaged_claim_is_no_claim_and_hides_nothing(tmp_path: Path, content: str) -> None:
    (tmp_path / claims.FILE).write_text(content)
    assert claims.read(str(tmp_path)) == (None, False, None)


def test_what_another_agent_has_taken_is_not_marked_any_more(tmp_path: Path) -> None:
    claims.write(str(tmp_path), CLAIM)
    path = tmp_path / claims.FILE
    theirs = {**json.loads(path.read_text()), "agent": DEAD, "looked_at": 1.0}
    path.write_text(json.dumps(theirs))
    claims.renew(str(tmp_path))
    assert json.loads(path.read_text()) == theirs
    claims.write(str(tmp_path), CLAIM)
    assert claims.read(str(tmp_path))[1]


def test_the_end_of_what_trained_is_told_whatever_its_standbys_have_become(tmp_path: Path) -> None:
    run = "t-20260101-000000"
    ends = {1: True, 2: True, 3: False, 4: False}
    for generation, released in ends.items():
        directory = tmp_path / "runs" / run / "tasks" / "worker-0" / f"gen-{generation:06d}"
        directory.mkdir(parents=True)
        task = blank_task({"task": "worker:0", "generation": generation})
        ended = ended_task(task, {**EXIT, "cause": "signal", "released": released})
        write_exit(str(directory), ended, 0.0)
    (found,) = agent_runs.known(str(tmp_path), records=False)["runs"]
    assert [task["generation"] for task in found["tasks"]] == [2, 4]
