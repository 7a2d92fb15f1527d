"""What a host tells of the runs that it remembers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.adapters.channel import encode
from orchestrator.adapters.host.hostdir import HostFault
from orchestrator.daemon.agent import runs as agent_runs
from orchestrator.daemon.shim.record import blank_task, ended_task, write_exit
from orchestrator.protocol.check import check_of
from orchestrator.protocol.orders import KnownRuns


def test_of_runs_that_are_over_a_line_each_is_told_of_their_ends(tmp_path: Path) -> None:
    """Or the answer of a host that remembers many would fit into no frame, and the host would count as unheard."""
    for number in range(30):
        run = f"t-20260101-{number:06d}"
        for index in range(8):
            directory = tmp_path / "runs" / run / "tasks" / f"worker-{index}" / "gen-000001"
            directory.mkdir(parents=True)
            start = {"task": f"worker:{index}", "generation": 1}
            lines = [f"{n} " + "x" * 4000 for n in range(20)]
            ended = ended_task(blank_task(start), "script", swept="marker", left=[], code=1, last_lines=lines)
            write_exit(str(directory), ended, 0.0)
    found = agent_runs.known(str(tmp_path), records=False)
    assert len(encode({"reply": 1, "ok": found})) < 1 << 20
    told = check_of(KnownRuns)(json.loads(json.dumps(found)))["runs"]
    assert [len(run["tasks"]) for run in told] == [8] * 30
    assert told[0]["tasks"][0]["exit"]["last_lines"] == ["19 " + "x" * 197]


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
    driving.look([run])
    with pytest.raises(HostFault, match="is driven by a coordinator"):
        agent_runs.remove(host_dir, run, even_driven=False)
    assert (tmp_path / "runs" / run).exists()
    driving.look([])
    assert agent_runs.remove(host_dir, run, even_driven=False) == {}
    assert not (tmp_path / "runs" / run).exists()
