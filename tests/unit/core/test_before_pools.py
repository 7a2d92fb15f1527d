"""Runs that the journal has of an orch that knew no pool: they train on, and others are placed beside them.

`before_pools.json` was written by the commit before the first that places runs on what is free.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from orchestrator.core import decide
from orchestrator.core.actions import StopTask
from orchestrator.core.events import Admitted, EpochBegan, HostReported, HostUp, TaskReport
from orchestrator.core.launching.placement import place
from orchestrator.core.plan import Ask
from orchestrator.core.queue import pool_replacements, turn_of, turns
from orchestrator.core.state.phase_states import Phase
from orchestrator.core.state.run import Run

KEPT = json.loads((Path(__file__).parent / "before_pools.json").read_text(encoding="utf-8"))


@pytest.fixture
def trains() -> Run:
    return TypeAdapter(Run).validate_python(KEPT["trains"])


@pytest.fixture
def waits() -> Run:
    return TypeAdapter(Run).validate_python(KEPT["waits"])


def test_a_run_in_flight_is_adopted_as_it_is_placed(trains: Run) -> None:
    run = decide.step(trains, EpochBegan(at=31.0, epoch=trains.epoch + 1)).run
    actions = []
    for task in run.tasks:
        report = TaskReport(task.id, task.generation, "running", pid=task.pid, progress=task.progress)
        for event in (HostUp(32.0, task.host, "boot-1"), HostReported(33.0, task.host, (report,))):
            run, more, _ = decide.step(run, event)
            actions += more
    assert not [action for action in actions if isinstance(action, StopTask)]
    assert (run.phase, run.generation) == (Phase.RUNNING, trains.generation)
    assert [(task.host, task.gpus) for task in run.placed.tasks] == [("a", (0, 1)), ("b", (0, 1))]
    assert pool_replacements([run], 1000.0) == [], "its places are fixed"


def test_a_run_that_waited_goes_where_it_was_to_go_once_that_is_free(trains: Run, waits: Run) -> None:
    (turn,) = turns([trains, waits], 40.0)
    assert not turn.has_come
    assert {run_id for run_id, _ in turn.waits_for} == {trains.run_id}
    (turn,) = turns([waits], 40.0)
    assert turn.has_come
    run = decide.step(waits, Admitted(40.0, place=turn.ask.place)).run
    assert [(task.host, task.gpus) for task in run.plan.tasks] == [("a", (0, 1)), ("b", (0, 1))]


def test_the_same_file_is_the_same_run_and_a_new_run_is_placed_beside_it(trains: Run) -> None:
    needs = (Ask("worker", 2, 2),)
    assert trains.is_of(replace(trains.plan, needs=needs))
    more = (*trains.plan.hosts, replace(trains.plan.hosts[0], name="c", address="c"))
    alone = (Ask("worker", 1, 2),)
    tasks, _ = place(more, alone, equal_gpus=True)
    new = replace(trains.plan, name="v", hosts=more, tasks=tasks, needs=alone, checkpoint=None)
    turn, _ = turn_of(new, [trains], 40.0)
    assert turn.ask.place is not None
    assert [task.host for task in turn.ask.place.tasks] == ["c"]
