"""Which of the runs that live on hosts are taken up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.cli.commands.recover import choose, document, shown
from orchestrator.core.errors import UsageError
from orchestrator.core.model import Cause, Exit, TaskPhase, new_run
from orchestrator.daemon.coordinator.recovery import Found, Search
from tests.unit.core.transcript import make_plan

RUN = "t-20260101-000000"


def search(**changes: Any) -> Search:
    run = new_run(RUN, make_plan(["a"], checkpoint=False), epoch=1, at=0.0)
    found = Found(RUN, **{"run": run, "lives_on": {"a"}, "phase": "RUNNING", **changes})
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
    (one,) = search().found.values()
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
