"""Where nothing could be decided for a while, no deadline comes because of it: of the run, or of one of its tasks."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.core.instants import stood_still
from orchestrator.core.model import Phase, TaskPhase, new_run
from orchestrator.core.plan import TaskId, TaskPlan
from tests.unit.core.phases import in_phase
from tests.unit.core.transcript import make_plan

FULL_S = 600.0
"""How long the disk was full."""


def test_a_task_that_starts_alone_has_its_whole_time() -> None:
    plan = make_plan(["a", "b", "c"], checkpoint=False)
    ids = [TaskId("chief", 0), TaskId("ps", 0), TaskId("worker", 0)]
    placed = tuple(TaskPlan(task, host) for task, host in zip(ids, "abc", strict=True))
    run = new_run("t-1", replace(plan, strategy="parameter_server", tasks=placed), epoch=1, at=0.0)
    starting = replace(run.task(ids[2]), generation=2, phase=TaskPhase.STARTING, deadline_at=300.0)
    tasks = tuple(replace(task, generation=1, phase=TaskPhase.RUNNING) for task in run.tasks)
    run = replace(in_phase(run, Phase.RUNNING), generation=1, generation_last=2, tasks=tasks).with_task(
        starting
    )
    later = stood_still(run, FULL_S, at=100.0 + FULL_S)
    assert later.task(ids[2]).deadline_at == 300.0 + FULL_S
