"""Which of the runs that live on hosts are taken up."""

from __future__ import annotations

import os
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.commands.recover import check_give_up, check_lost, choose, document, rebuild, shown
from orchestrator.core.causes import Cause
from orchestrator.core.ends import Exit
from orchestrator.core.errors import Refused, UsageError
from orchestrator.core.events import Ticked
from orchestrator.core.state.phase_states import Phase
from orchestrator.core.state.run import new_run
from orchestrator.core.state.task import TaskPhase
from orchestrator.head.hosts.recovery import Remembered, Search
from orchestrator.head.journal.journal import Journal
from orchestrator.head.journal.reading import read_runs
from tests.unit.cli.desk import Desk
from tests.unit.core.phases import in_phase
from tests.unit.core.transcript import make_plan

RUN = "t-20260101-000000"


def search(**changes: Any) -> Search:
    run = new_run(RUN, make_plan(["a"], checkpoint=False), epoch=1, at=0.0)
    found = Remembered(RUN, **{"run": run, "lives_on": {"a"}, "phase": "RUNNING", **changes})
    return Search([], {RUN: found}, epoch=1)


def test_a_run_that_nobody_knows_is_taken_up() -> None:
    chosen, others = choose(search(), (), {})
    assert [one.run_id for one in chosen] == [RUN]
    assert others == []


def test_what_is_left_of_a_run_that_was_killed_does_not_bring_it_back() -> None:
    chosen, others = choose(search(), (RUN,), {RUN: "KILLED"})
    assert chosen == []
    assert others[0].why is not None
    assert others[0].why.startswith("it has ended: KILLED")
    assert choose(search(lives_on=set(), run=None), (), {RUN: "KILLED"}) == ([], []), (
        "and the journal shows it"
    )


def test_what_is_not_taken_up_is_said_with_its_state() -> None:
    chosen, others = choose(
        search(lives_on=set(), run=None, phase=None, why="nothing of it lives: …"), (), {}
    )
    assert shown(chosen, others) == [f"{RUN}  not adopted: nothing of it lives: …"]
    (told,) = document(chosen, others)
    assert (told["recovered"], told["why"], told["lives_on"]) == (False, "nothing of it lives: …", [])


def test_what_is_missing_is_shown_before_anybody_agrees() -> None:
    (one,) = search().runs.values()
    assert one.run is not None
    lost = replace(
        one.run.tasks[0], phase=TaskPhase.LOST, exit=Exit(cause=Cause.START, error="nothing was found")
    )
    assert shown([replace(one, run=one.run.with_task(lost))], []) == [
        f"{RUN}  generation 0, 1 task",
        "  worker:0 on a: LOST: nothing was found; its group will be restarted",
    ]


def test_another_coordinators_run_is_taken_only_by_word_and_only_where_it_lives() -> None:
    _, others = choose(search(watched_on={"a"}), (), {})
    assert others[0].why is not None
    assert f"`--take-over {RUN}`" in others[0].why
    chosen, _ = choose(search(watched_on={"a"}), (RUN,), {})
    assert [one.run_id for one in chosen] == [RUN]
    _, others = choose(search(watched_on={"a"}, run=None, lives_on=set()), (), {})
    assert others[0].why == "another coordinator drives it (its agent is on a)"


def test_a_run_to_take_over_that_is_not_there_is_said() -> None:
    with pytest.raises(UsageError, match="nothing found of no-such-run"):
        choose(search(), ("no-such-run",), {})


# --- single runs of a journal that cannot be read ------------------------------------------------------------

READABLE = "u-20260101-000000"


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """Return a desk whose journal holds two active runs, of which one cannot be read."""
    made = Desk(tmp_path)
    os.makedirs(made.paths.state_dir, mode=0o700)
    journal = Journal(made.paths.journal)
    for run_id in (RUN, READABLE):
        run = in_phase(new_run(run_id, make_plan(["a"], checkpoint=False), epoch=1, at=0.0), Phase.RUNNING)
        journal.commit(run, Ticked(1.0), [])
    journal.close()
    with sqlite3.connect(made.paths.journal) as db:
        db.execute("UPDATE runs SET state = '{}' WHERE run_id = ?", (RUN,))
    return made


@pytest.mark.fault(59)
def test_row_59_the_run_that_cannot_be_read_is_rebuilt_beside_the_others(desk: Desk) -> None:
    loss = check_lost(desk)
    assert (loss.trouble, loss.known) == (None, {READABLE: "RUNNING"})
    assert [one.run_id for one in loss.set_aside] == [RUN]
    found = search()
    found.runs[READABLE] = Remembered(READABLE, run=found.runs[RUN].run, lives_on={"a"})
    chosen, others = choose(found, (), loss.known)
    assert [one.run_id for one in chosen] == [RUN]
    assert others[0].why == "the journal holds it: RUNNING; `orch coordinator start` adopts it"
    assert rebuild(desk, found, chosen, loss, ()) is None, "nothing is put aside"
    contents = read_runs(desk.paths.journal)
    assert {one.run.run_id for one in contents.kept} == {RUN, READABLE}
    assert contents.unreadable == ()


def test_a_run_that_cannot_be_read_and_does_not_live_is_given_up_by_word(desk: Desk) -> None:
    loss = check_lost(desk)
    with pytest.raises(UsageError, match=f"{READABLE} is not among the runs that cannot be read"):
        check_give_up((READABLE,), loss, search())
    with pytest.raises(Refused, match=f"{RUN} is alive on a"):
        check_give_up((RUN,), loss, search())
    nowhere = Search([], {}, epoch=1)
    check_give_up((RUN,), loss, nowhere)
    rebuild(desk, nowhere, [], loss, (RUN,))
    assert read_runs(desk.paths.journal).set_aside == ()


def test_where_all_can_be_read_nothing_is_lost(desk: Desk) -> None:
    loss = check_lost(desk)
    rebuild(desk, Search([], {}, epoch=1), [], loss, (RUN,))
    with pytest.raises(Refused, match=f"is intact and contains {READABLE}"):
        check_lost(desk)
