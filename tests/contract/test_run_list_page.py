"""The page's list of many runs: it opens at once, reads the records bit by bit, and people find runs by their marks."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.core.errors import UsageError
from orchestrator.core.events import Ticked
from orchestrator.core.state.phase_states import Phase
from orchestrator.core.state.run import new_run
from orchestrator.head.journal import archive
from orchestrator.head.journal.journal import Journal
from orchestrator.head.node.page_access import PageAccess
from orchestrator.head.node.paths import Paths
from orchestrator.head.records import marks
from orchestrator.page.source import Source
from tests.contract.test_page import Served, Stream
from tests.unit.core.phases import in_phase
from tests.unit.core.transcript import make_plan

OLD = [f"old-20260101-{number:06d}" for number in range(6)]


def put_away(paths: Paths) -> None:
    """Leave records of ended runs, as the journal does."""
    paths.ensure()
    os.makedirs(paths.runs, mode=0o700, exist_ok=True)
    journal = Journal(paths.journal)
    for number, run_id in enumerate(OLD):
        plan = replace(make_plan(["a"], checkpoint=True), name="old")
        phase = Phase.FAILED if number % 2 else Phase.SUCCEEDED
        journal.commit(in_phase(new_run(run_id, plan, epoch=1, at=1.0), phase), Ticked(2.0), [])
    journal.close()
    with sqlite3.connect(paths.journal) as db:
        for run_id in OLD:
            archive.write(db, run_id, paths.run_dir(run_id))
    db.close()


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    made = Paths(str(tmp_path / "state"), str(tmp_path / "run"))
    put_away(made)
    return made


def test_the_first_opening_reads_no_record_and_the_newest_come_first(paths: Paths) -> None:
    source = Source(paths)
    first = source.archived(read_s=0.0)
    assert [(run_id, run["name"], run["phase"]) for run_id, run in first.items()] == [
        (run_id, "old", None) for run_id in OLD
    ]
    some: dict[str, object] = {}
    while not some:
        known = source.archived(read_s=0.001)
        some = {run_id: run["phase"] for run_id, run in known.items() if run["phase"]}
    assert OLD[-1] in some
    whole = source.archived(read_s=60.0)
    assert [run["phase"] for run in whole.values()] == ["SUCCEEDED", "FAILED"] * 3
    assert all("tasks" not in run for run in whole.values()), "a list needs less"
    assert [task["task"] for task in source.archived_run(OLD[0])["tasks"]] == ["worker:0"]


def test_what_was_read_once_is_there_at_once_and_a_damaged_record_stops_nobody(paths: Paths) -> None:
    Source(paths).archived(read_s=60.0)
    for run_id in OLD[:5]:  # what the list needs of them is kept beside
        Path(paths.run_dir(run_id), archive.FILE).write_bytes(b"damaged")
    Path(paths.run_dir(OLD[5]), "listed.json").write_text("{")
    Path(paths.run_dir(OLD[4]), "listed.json").unlink()
    found = Source(paths).archived(read_s=60.0)
    assert [run["phase"] for run in found.values()] == [
        "SUCCEEDED",
        "FAILED",
        "SUCCEEDED",
        "FAILED",
        None,
        "FAILED",
    ]
    assert "is damaged" in found[OLD[4]]["reason"]


def test_tags_and_notes_are_given_changed_and_refused(paths: Paths, tmp_path: Path) -> None:
    def tag(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "orchestrator.cli.main", "tag", *words]
        env = {**os.environ, "ORCH_STATE_DIR": paths.state_dir, "ORCH_RUNTIME_DIR": str(tmp_path / "run")}
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)

    source = Source(paths)
    source.archived(read_s=60.0)
    assert tag(OLD[2], "paper", "baseline", "--note", "with the new data").returncode == 0
    assert tag("old").stdout == f"{OLD[5]}: no tags\n", "a name is its newest run"
    done = tag(OLD[2], "--remove", "baseline")
    assert done.stdout == f"{OLD[2]}: paper\nwith the new data\n"
    for words, why in (((OLD[2], "two words"), "is no tag"), (("nobody", "x"), "no run is named")):
        refused = tag(*words)
        assert refused.returncode == 2
        assert why in refused.stderr
    source._listed_at = time.monotonic() - 60
    assert (source.archived()[OLD[2]]["tags"], source.archived()[OLD[2]]["note"]) == (
        ["paper"],
        "with the new data",
    )
    with pytest.raises(UsageError):
        marks.change(paths.run_dir(OLD[2]), add=[f"t{number}" for number in range(40)])
    assert marks.read(paths.run_dir(OLD[2]))["tags"] == ["paper"], "nothing was changed"


def test_marks_are_set_on_the_page_only_where_it_may_act(tmp_path: Path) -> None:
    for actions in (False, True):
        directory = tmp_path / str(actions)
        directory.mkdir()
        with Served(directory, actions=actions) as served:
            run_id = str(served.api.runs[0]["run_id"])
            os.makedirs(directory / "state/runs" / run_id)
            headers = served.log_in()
            origin = {"Origin": f"http://127.0.0.1:{served.port}"}
            body = json.dumps({"add": ["paper"], "note": "mine"})
            answer = served.ask(f"/v1/runs/{run_id}/mark", "POST", body, **headers, **origin)
            assert answer.status == (202 if actions else 405)
            (run,) = served.ask("/v1/runs", **headers).json["runs"]
            assert (run["tags"], run["note"]) == ((["paper"], "mine") if actions else ([], ""))


def test_who_has_a_share_does_not_see_what_env_says(tmp_path: Path) -> None:
    """The list, the stream, the plan and a comparison would say it, of runs that go on and of old ones."""
    paths = Paths(str(tmp_path / "state"), str(tmp_path / "run"))
    put_away(paths)
    journal = Journal(paths.journal)
    plan = make_plan(["a"], checkpoint=True)
    for number, place in enumerate(("of-the-lab", "of-another-lab")):
        run = new_run(
            f"t-20260101-00000{number}", replace(plan, env={"DATA_PLACE": place}), epoch=1, at=1.0 + number
        )
        journal.commit(in_phase(run, Phase.RUNNING), Ticked(2.0), [])
    journal.close()
    one, other = "t-20260101-000000", "t-20260101-000001"
    with Served(tmp_path) as served:
        served.api.runs = [{**served.api.runs[0], "run_id": run_id} for run_id in (one, other)]
        owner, reader = (
            served.log_in(token) for token in ("", PageAccess(paths.state_dir).share("Anna").token)
        )
        for path in ("/v1/runs", f"/v1/runs/{one}/plan", f"/v1/runs/{one}/compare?with={other}"):
            told, shown = (served.ask(path, **headers) for headers in (owner, reader))
            assert (told.status, shown.status) == (200, 200), told.body
            assert (b"of-the-lab" in told.body, b"DATA_PLACE" in told.body) == (True, True), path
            assert (b"of-the-lab" in shown.body, b"DATA_PLACE" in shown.body) == (False, False), path
            assert shown.json.keys() == told.json.keys()
        said = [
            json.dumps(Stream(served, f"?run={one}", headers=headers).next()) for headers in (owner, reader)
        ]
        assert ["of-the-lab" in each for each in said] == [True, False]
        assert all('"strategy"' in each for each in said), "other parameters are shown"
