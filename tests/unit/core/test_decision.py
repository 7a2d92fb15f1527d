"""What a turn decided, and what of it the journal must have."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.core import events as ev
from orchestrator.core.actions import Note
from orchestrator.core.decision import is_worth_keeping
from orchestrator.core.model import Link, Phase, Progress, Run, TaskPhase, new_run
from tests.unit.core.phases import in_phase
from tests.unit.core.transcript import make_plan

RUN = in_phase(
    new_run("t-20260101-000000", make_plan(["a"], checkpoint=False), epoch=1, at=0.0), Phase.RUNNING
)
TASK, HOST = RUN.tasks[0], RUN.hosts[0]
REPORT = ev.HostReported(1.0, "a", ())


@pytest.mark.parametrize(
    "after",
    [
        RUN.with_task(replace(TASK, phase=TaskPhase.RUNNING)),
        RUN.with_task(replace(TASK, pid=7)),
        RUN.with_task(replace(TASK, port=20000)),
        RUN.with_task(replace(TASK, first_step=0)),
        RUN.with_host(replace(HOST, link=Link.CONNECTED)),
        in_phase(RUN, Phase.STOPPING),
    ],
)
def test_what_a_heartbeat_teaches_is_kept(after: Run) -> None:
    assert is_worth_keeping(RUN, after, REPORT, [])


def test_a_heartbeat_that_only_moves_numbers_is_not() -> None:
    moved = RUN.with_task(replace(TASK, heard_at=5.0, progress=Progress(global_step=9)))
    moved = moved.with_host(replace(moved.hosts[0], heard_at=5.0, cpu_percent=7.0))
    assert not is_worth_keeping(RUN, moved, REPORT, [])
    assert is_worth_keeping(RUN, moved, REPORT, [Note("adopted", "it goes on")])
    for event in (ev.KillRequested(1.0), ev.Ticked(1.0), ev.HostUp(1.0, "a", "boot")):
        assert is_worth_keeping(RUN, RUN, event, [])
