"""Which of the runs that live on hosts are taken up."""

from __future__ import annotations

from orchestrator.cli.recover import choose
from orchestrator.core.model import new_run
from orchestrator.daemon.recovery import Found, Search
from tests.unit.core.transcript import make_plan

RUN = "t-20260101-000000"


def search() -> Search:
    run = new_run(RUN, make_plan(["a"], checkpoint=False), epoch=1, at=0.0)
    return Search([], {RUN: Found(RUN, run=run)}, epoch=1)


def test_a_run_that_nobody_knows_is_taken_up() -> None:
    chosen, others = choose(search(), (), {})
    assert [one.run_id for one in chosen] == [RUN]
    assert others == []


def test_what_is_left_of_a_run_that_was_killed_does_not_bring_it_back() -> None:
    chosen, others = choose(search(), (RUN,), {RUN: "KILLED"})
    assert chosen == []
    assert others[0].why is not None
    assert others[0].why.startswith("it has ended: KILLED")
