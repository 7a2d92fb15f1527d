"""Ended runs are kept however many follow: what leaves the journal is read as before, by every command."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.actions import Note
from orchestrator.core.events import Ticked
from orchestrator.core.notes import NoteKind
from orchestrator.core.state.phase_states import Phase
from orchestrator.core.state.run import new_run
from orchestrator.head.journal import archive
from orchestrator.head.journal.journal import ENDED_MAX, Journal
from orchestrator.head.node import holder
from orchestrator.head.node.paths import Paths
from orchestrator.head.records.history import History
from orchestrator.head.records.runlogs import RunLogs
from tests.contract.test_one_coordinator import Head
from tests.patience import comes
from tests.unit.core.phases import in_phase
from tests.unit.core.transcript import make_plan

OLD = "long-20260101-000000"
CAUSE = {
    "task": "worker:0",
    "sentence": "worker:0 ran out of memory",
    "generation": 1,
    "last_lines": ["x"],
    "finding": None,
}


@pytest.fixture
def head(request: pytest.FixtureRequest) -> Iterator[Head]:
    """A head node whose first run has ended, and as many after it as the journal holds, or as the parameter says."""
    with tempfile.TemporaryDirectory(prefix="orch-t-") as short:
        made = Head(Path(short).resolve())
        (made.state_dir / "runs").mkdir(parents=True)
        for directory in (made.state_dir, made.state_dir / "runs"):
            directory.chmod(0o700)
        paths = Paths(str(made.state_dir), str(made.runtime))
        journal = Journal(paths.journal)
        for number in range(getattr(request, "param", ENDED_MAX + 1)):
            name = "typo" if number else "long"
            run_id = f"typo-20260102-{number:06d}" if number else OLD
            plan = replace(make_plan(["a"], checkpoint=True), name=name)
            run = in_phase(new_run(run_id, plan, epoch=1, at=1.0), Phase.FAILED)
            said = [Note(NoteKind.WARNING, f"what {run_id} met", data={"first_cause": CAUSE})]
            journal.commit(run, Ticked(2.0), said)
        journal.close()
        logs = RunLogs(str(made.state_dir))
        logs.append(OLD, "worker:0", 1, 0, b"1760000000.0 o the last line of three weeks\n")
        measured = History(os.path.join(paths.run_dir(OLD), "history.db"))
        measured.add(1_760_000_000.0, 1, 9, "", {"loss": 0.25})
        measured.flush(1_760_000_000.0)
        measured.close()
        yield made
        known = holder.living(str(made.state_dir))
        if known is not None:
            os.kill(known.pid, signal.SIGKILL)
            comes(lambda: holder.living(str(made.state_dir)) is None, 10.0)


@pytest.mark.fault(116)
def test_the_51st_run_takes_nothing_of_the_first(head: Head) -> None:
    def told(*words: str) -> Any:
        done = head.orch(head.login, *words, "--json")
        assert done.returncode == 0, (words, done.stderr)
        lines = words[0] == "events"
        return [json.loads(line) for line in done.stdout.splitlines()] if lines else json.loads(done.stdout)

    head.started()
    paths = Paths(str(head.state_dir), str(head.runtime))
    assert archive.run_ids(paths) == [OLD]
    assert OLD not in {run["run_id"] for run in told("status")["runs"]}, "the coordinator does not hold it"
    for name in (OLD, "long"):
        (run,) = told("status", name)["runs"]
        assert (run["run_id"], run["phase"]) == (OLD, "FAILED")
        assert [event["message"] for event in told("events", name)] == [f"what {OLD} met"]
        (why,) = told("why", name, "--all")["first_causes"]
        assert {key: why[key] for key in CAUSE} == CAUSE
        assert why["ended_time"], "of its event, since the cause has none"
        assert "the last line of three weeks" in head.orch(head.login, "logs", name).stdout
    series = head.orch(head.login, "report", OLD, "--html", str(head.home / "r.html"))
    assert series.returncode == 0, series.stderr
    assert '"loss"' in (head.home / "r.html").read_text()
    refused = head.orch(head.login, "ckpt", "rollback", OLD, "--to", "20")
    assert refused.returncode != 0
    assert f"{OLD} has ended, and only its records are kept" in refused.stderr
    looked = head.orch(head.login, "gc", "--dry-run", "--json")
    assert OLD not in looked.stdout, "its logs are no orphans"
    assert head.orch(head.login, "coordinator", "stop").returncode == 0
    assert told("why", OLD, "--all")["phase"] == "FAILED", "without a coordinator, too"
    assert head.orch(head.login, "replay", OLD).returncode == 0


@pytest.mark.long  # the 51st is the first that is kept so
@pytest.mark.fault(116)
@pytest.mark.parametrize("head", [500], indirect=True)
def test_the_500th_run_takes_nothing_of_those_before(head: Head) -> None:
    head.started()
    listed = json.loads(head.orch(head.login, "runs", "--all", "--json").stdout)["runs"]
    assert len({run["run_id"] for run in listed}) == 500
    for run_id in (OLD, "typo-20260102-000250", "typo-20260102-000499"):
        (run,) = json.loads(head.orch(head.login, "status", run_id, "--json").stdout)["runs"]
        assert (run["run_id"], run["phase"]) == (run_id, "FAILED")
        (why,) = json.loads(head.orch(head.login, "why", run_id, "--all", "--json").stdout)["first_causes"]
        assert {key: why[key] for key in CAUSE} == CAUSE


@pytest.mark.fault(116)
def test_what_a_person_removes_is_gone_and_nothing_else(head: Head) -> None:
    """In the journal or out of it. Its host does not answer, so the run stays unless that is said to be so for good."""
    head.started()
    paths = Paths(str(head.state_dir), str(head.runtime))
    newest = f"typo-20260102-{ENDED_MAX:06d}"
    unasked = head.orch(head.login, "rm", OLD, "--here")
    assert (unasked.returncode, "no terminal to confirm on" in unasked.stderr) == (6, True)
    assert os.path.isdir(paths.run_dir(OLD))
    for run_id in (OLD, newest):
        kept = head.orch(head.login, "rm", run_id, "--yes")
        assert (kept.returncode, f"{run_id} is kept: a did not answer" in kept.stderr) == (4, True)
        assert os.path.isdir(paths.run_dir(OLD)) or run_id != OLD
        done = head.orch(head.login, "rm", run_id, "--here", "--yes")
        assert done.returncode == 0, done.stderr
        assert f"Removed {run_id}" in done.stderr
        assert not os.path.exists(paths.run_dir(run_id))
        again = head.orch(head.login, "rm", run_id, "--here", "--yes")
        assert (again.returncode, "no run is named" in again.stderr) == (2, True)
    left = json.loads(head.orch(head.login, "runs", "--json").stdout)["runs"]
    assert [one["run_id"] for one in left] == [
        f"typo-20260102-{number:06d}" for number in range(ENDED_MAX - 1, 0, -1)
    ]
    assert head.orch(head.login, "rm", "typo", "--here", "--yes").returncode == 0
    assert head.orch(head.login, "status").stderr == "", (
        "a journal that a person has emptied was not replaced"
    )
    assert head.orch(head.login, "coordinator", "restart").returncode == 0
    assert len(json.loads(head.orch(head.login, "status", "--json").stdout)["runs"]) == 0


def test_a_record_that_cannot_be_read_is_named_and_can_be_removed_and_the_others_too(head: Head) -> None:
    head.started()
    paths = Paths(str(head.state_dir), str(head.runtime))
    with open(archive.place_of(paths, OLD), "r+b") as file:
        file.truncate(100)
    refused = head.orch(head.login, "rm", OLD, "--yes")
    assert (refused.returncode, f"`orch rm {OLD} --here` removes it" in " ".join(refused.stderr.split())) == (
        6,
        True,
    )
    done = head.orch(head.login, "rm", "typo-20260102-000007", OLD, "--here", "--yes")
    assert done.returncode == 0, done.stderr
    assert not os.path.exists(paths.run_dir(OLD))
    left = json.loads(head.orch(head.login, "runs", "--json").stdout)["runs"]
    assert len(left) == ENDED_MAX - 1


@pytest.mark.fault(116)
def test_records_over_their_budget_are_said_and_none_is_removed(head: Head) -> None:
    head.login["ORCH_RECORDS_GB"] = "0.00001"
    head.started()
    assert comes(lambda: "the records of all runs take" in head.orch(head.login, "status").stderr, 10.0)
    said = " ".join(head.orch(head.login, "status").stderr.split())
    assert "more than $ORCH_RECORDS_GB (10 KiB); `orch runs` lists them, and `orch rm` removes those" in said
    assert len(json.loads(head.orch(head.login, "runs", "--json").stdout)["runs"]) == ENDED_MAX + 1
