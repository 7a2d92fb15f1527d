"""`orch runs`: every run is listed, wherever it is kept, with its outcome and what differed."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.core.events import Ticked
from orchestrator.core.state.phase_states import Phase
from orchestrator.core.state.run import new_run
from orchestrator.core.state.task import Progress
from orchestrator.head.journal import archive
from orchestrator.head.journal.journal import Journal
from tests.contract.fake_api import FakeApi, run_document
from tests.unit.cli.desk import Desk
from tests.unit.core.phases import in_phase
from tests.unit.core.transcript import make_plan

Put = Callable[..., None]


@pytest.fixture
def put(orch: Desk) -> Put:
    """Return what puts a run into the journal, a second after the one before."""
    orch.paths.ensure()
    clock = iter(f"2026-01-01T00:00:{second:02}.000Z" for second in range(60))
    journal = Journal(orch.paths.journal, clock=lambda: next(clock))

    def add(
        run_id: str, phase: Phase = Phase.SUCCEEDED, *, step: int = 0, lr: str = "", **metrics: float
    ) -> None:
        plan = replace(make_plan(["a"], checkpoint=True), name=run_id.rsplit("-", 2)[0])
        plan = replace(plan, args=(f"--lr={lr}",)) if lr else plan
        run = in_phase(new_run(run_id, plan, epoch=1, at=1.0), phase)
        told = Progress(global_step=step, metrics=metrics)
        journal.commit(run.with_task(replace(run.tasks[0], progress=told)), Ticked(2.0), [])

    add.old = lambda: journal.put_away(orch.paths.run_dir, ended_max=0)  # type: ignore[attr-defined]
    return add


def rows(orch: Desk, *words: str) -> list[dict[str, Any]]:
    before = len(orch.put_out)
    assert orch("runs", *words, "--json") == 0, orch.said
    found: list[dict[str, Any]] = json.loads(orch.put_out[before:])["runs"]
    return found


def test_all_runs_newest_first_with_what_differed_from_the_one_before_of_the_name(
    orch: Desk, put: Put
) -> None:
    put("mnist-20260101-000000", step=100, lr="0.1", loss=0.5)
    put("other-20260101-000001", Phase.FAILED)
    put.old()  # type: ignore[attr-defined]
    put("mnist-20260101-000002", Phase.KILLED, step=50, lr="0.01", loss=0.25)
    assert len(archive.run_ids(orch.paths)) == 2
    new, other, old = rows(orch)
    assert [one["run_id"] for one in (new, other, old)] == [
        "mnist-20260101-000002", "other-20260101-000001", "mnist-20260101-000000"]  # fmt: skip
    assert new["differs"] == [{"key": "args --lr", "old": "0.1", "new": "0.01"}]
    assert old["differs"] == other["differs"] == []
    assert (old["phase"], old["global_step"], old["metrics"]) == ("SUCCEEDED", 100, {"loss": 0.5})
    assert old["created"] < other["created"] < new["created"]
    assert rows(orch, new["run_id"]) == [new], "by its id, it is compared with the one before of the name too"
    assert orch("runs", "mnist") == 0
    head, first, second = orch.put_out.splitlines()[-3:]
    assert head.split() == ["RUN", "BEGAN", "PHASE", "STEP", "RESTARTS", "LOSS", "DIFFERS"]
    assert first.endswith("args --lr: 0.1 -> 0.01")
    assert first.split()[4:8] == ["KILLED", "50", "0", "0.25"]
    assert second.startswith("mnist-20260101-000000")


def test_what_goes_on_has_its_figures_of_now(orch: Desk, api: FakeApi, put: Put) -> None:
    put("mnist-20260101-000000", Phase.RUNNING, step=1)
    api.runs.append(run_document(run_id="mnist-20260101-000000", global_step=77, metrics={"loss": 0.1}))
    (one,) = rows(orch)
    assert (one["global_step"], one["metrics"]) == (77, {"loss": 0.1})


@pytest.mark.parametrize(
    ("words", "left"),
    [
        (["--where", "val_accuracy>0.8"], "ca"),
        (["--where", "val_accuracy >= 0.9"], "ca"),
        (["--where", "val_accuracy!=0.9", "--where", "step<=200"], "b"),
        (["--where", "restarts=0"], "dcba"),
        (["--sort", "val_accuracy"], "bacd"),
        (["--sort=-val_accuracy"], "cabd"),
        (["--sort", "when"], "abcd"),
        (["--sort=-step"], "dcba"),
    ],
)
def test_they_are_chosen_and_sorted_by_their_figures(
    orch: Desk, put: Put, words: list[str], left: str
) -> None:
    for place, (name, accuracy) in enumerate(zip("abc", (0.9, 0.5, 0.95), strict=True)):
        put(f"{name}-20260101-00000{place}", step=50 * (place + 1) * (place + 1), val_accuracy=accuracy)
    put("d-20260101-000009", step=9999)
    assert "".join(one["name"] for one in rows(orch, *words)) == left


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--where", "loss"], "'loss' is no condition"),
        (["--where", "when>1"], "no run has a figure 'when'"),
        (["--where", "loss<much"], "'loss<much' is no condition"),
        (["--where", "los<1"], "no run has a figure 'los'\nhint: there are loss, restarts, step"),
        (["--sort", "los"], "no run has a figure 'los'"),
        (["nobody"], "no run is named 'nobody'"),
    ],
)
def test_what_is_not_understood_is_said(orch: Desk, put: Put, words: list[str], said: str) -> None:
    put("a-20260101-000000", loss=1.0)
    assert orch("runs", *words) == 2
    assert said in orch.said


def test_of_many_the_first_are_shown_and_a_damaged_one_is_named(orch: Desk, put: Put) -> None:
    assert rows(orch) == []
    for number in range(25):
        put(f"a-20260101-0000{number:02}", loss=1.0)
    assert orch("runs") == 0
    assert len(orch.put_out.splitlines()) >= 21
    assert "5 more runs; --all shows them" in orch.said
    put.old()  # type: ignore[attr-defined]
    place = archive.place_of(orch.paths, "a-20260101-000003")
    with open(place, "r+b") as file:
        file.truncate(100)
    assert len(rows(orch)) == 24
    assert "a-20260101-000003 is left out: the record" in orch.said


def test_a_run_whose_state_cannot_be_read_is_named(orch: Desk, put: Put) -> None:
    put("a-20260101-000000", Phase.RUNNING)
    with closing(sqlite3.connect(orch.paths.journal)) as db, db:
        db.execute("UPDATE runs SET state = '{}'")
    for words in ((), ("a",)):
        assert rows(orch, *words) == []
        assert "a-20260101-000000 is set aside: its state in the journal cannot be read" in orch.said
    assert orch("runs") == 0
    assert "No runs to show" in orch.said
    assert orch("runs", "b") == 2


def test_a_run_is_found_by_its_tags(orch: Desk, put: Put) -> None:
    for second in range(3):
        put(f"mnist-20260101-00000{second}", loss=0.1)
    assert orch("tag", "mnist-20260101-000001", "baseline", "paper", "--note", "the old data") == 0
    (one,) = rows(orch, "--tag", "baseline", "--tag", "paper")
    assert (one["run_id"], one["tags"], one["note"]) == (
        "mnist-20260101-000001", ["baseline", "paper"], "the old data")  # fmt: skip
    assert rows(orch, "--tag", "baseline", "--tag", "other") == []
    assert orch("runs") == 0
    head, *lines = orch.put_out.splitlines()[-4:]
    assert "TAGS" in head
    assert ["baseline, paper" in line for line in lines] == [False, True, False]
