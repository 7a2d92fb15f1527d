"""What a host tells of the runs that it remembers."""

from __future__ import annotations

from pathlib import Path

from orchestrator.daemon.agent import runs as agent_runs


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
