"""`orch status` without a coordinator: the last recorded state, and that it is one."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.cli.commands.status import Keys
from orchestrator.client import recorded
from orchestrator.core.plan import QueuePlan
from orchestrator.core.state.run import new_run
from tests.unit.cli.desk import Desk
from tests.unit.core.transcript import make_plan
from tests.unit.head.recording import RUN, Head


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """Return a desk with the journal of a run that trains, and no coordinator."""
    made = Desk(tmp_path)
    os.makedirs(made.paths.state_dir, mode=0o700)
    head = Head(Path(made.paths.journal))
    head.begin()
    head.train(10)
    head.end()
    os.utime(made.paths.journal, (880.0, 880.0))
    return made


def test_the_last_recorded_state_is_shown_as_such(desk: Desk) -> None:
    assert desk("status", "t") == 3
    assert desk.put_out.startswith(f"{RUN}  RUNNING  generation 1")
    assert "this is the last recorded state, of 2 min ago" in desk.said
    assert "hint: start it with `orch coordinator start`" in desk.said


def test_its_document_says_when_it_was_recorded_and_nothing_that_only_heartbeats_know(desk: Desk) -> None:
    assert desk("status", "--json") == 3
    document = json.loads(desk.put_out)
    assert (document["coordinator"], document["recorded_age_s"]) == (None, 120.0)
    [run] = document["runs"]
    assert {task["heartbeat_age_s"] for task in run["tasks"]} == {None}
    assert (run["steps_per_s"], run["eta_s"], run["bottleneck"]) == (None, None, None)
    recorded_at = time.time() + 300
    os.utime(desk.paths.journal, (recorded_at, recorded_at))
    later = recorded.status(desk.paths, now=recorded_at + 120)
    assert later is not None
    assert 299 < later["runs"][0]["elapsed_s"] < 310, "what was recorded does not count on"


def test_a_journal_that_cannot_be_read_leaves_the_error(desk: Desk) -> None:
    Path(desk.paths.journal).write_bytes(b"no journal")
    assert desk("status") == 3
    assert desk.said.startswith("error: no coordinator is running behind")
    assert desk.put_out == ""


@pytest.mark.fault(81)
def test_a_run_that_cannot_be_read_is_named_with_the_way_out_and_not_called_no_run(desk: Desk) -> None:
    with sqlite3.connect(desk.paths.journal) as db:
        db.execute("UPDATE runs SET state = '{}'")
    assert desk("status") == 3
    assert desk.put_out == "No run can be shown\n"
    assert f"warning: {RUN} is set aside: its state in the journal cannot be read" in desk.said
    assert "`orch recover --hosts cluster.yaml` adopt its living tasks" in desk.said


def test_the_screen_of_watch_names_it_too(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    with sqlite3.connect(desk.paths.journal) as db:
        db.execute("UPDATE runs SET state = '{}'")
    monkeypatch.setattr(Keys, "wait", lambda _keys, _seconds: "q")
    monkeypatch.setattr(desk.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    desk.out_is_terminal = True
    assert desk("status", "--watch") == 0
    assert f"{RUN} is set aside" in desk.put_out


def test_a_run_that_waits_in_the_queue_is_shown_too(tmp_path: Path) -> None:
    """None of its events counts as time that was spent, so there is no account of it."""
    desk = Desk(tmp_path)
    os.makedirs(desk.paths.state_dir, mode=0o700)
    head = Head(Path(desk.paths.journal))
    plan = replace(make_plan(["a", "b"], checkpoint=True), queue=QueuePlan())
    head.loop.submit(new_run(RUN, plan, epoch=1, at=head.now))
    head.end()
    assert desk("status", "--json") == 3, desk.said
    [run] = json.loads(desk.put_out)["runs"]
    assert (run["phase"], run["generation"], run["global_step"]) == ("QUEUED", 0, None)


def test_its_age_is_told_to_a_tenth_of_a_second_as_all_ages_are(desk: Desk) -> None:
    found = recorded.status(desk.paths, now=880.0 + 120.26)
    assert found is not None
    assert found["recorded_age_s"] == 120.3
