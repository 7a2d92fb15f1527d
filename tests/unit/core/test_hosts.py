"""What hosts say of themselves when they come up, and how long one that has come back is shown as there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.core import decide
from orchestrator.core.actions import Note
from orchestrator.core.causes import Cause
from orchestrator.core.ends import Exit
from orchestrator.core.events import HostUp, Submitted
from orchestrator.core.hosts.host_state import lose
from orchestrator.core.phases.lifecycle import silent_at
from orchestrator.core.phases.stopping import SWEEP_WAIT_S, stop_all
from orchestrator.core.state.host import Link
from orchestrator.core.state.phase_states import Intent, Phase, Stopping
from orchestrator.core.state.run import Run, new_run
from orchestrator.core.turn import Turn
from tests.unit.core.phases import in_phase
from tests.unit.core.transcript import make_plan

SENTENCE = "logind kills the processes of ml at logout"


def up(run: Run, warning: str | None) -> tuple[Run, list[str]]:
    run, actions, _ = decide.step(run, HostUp(1.0, "a", "boot-1", warning))
    return run, [f"{a.kind.value}: {a.message}" for a in actions if isinstance(a, Note)]


def test_a_warning_of_a_host_is_said_once_and_again_when_it_changes() -> None:
    run = new_run("t-20260101-000000", make_plan(["a"], checkpoint=False), epoch=1, at=0.0)
    run, _, _ = decide.step(run, Submitted(0.0))
    run, said = up(run, SENTENCE)
    assert said == [f"host-warning: a: {SENTENCE}"]
    run, said = up(run, SENTENCE)
    assert (said, run.host("a").warning) == ([], SENTENCE)
    run, said = up(run, None)
    assert (said, run.host("a").warning) == ([], None)
    assert up(run, SENTENCE)[1] != []


def running(lost_after_s: float) -> Run:
    plan = make_plan(["a"], checkpoint=False)
    plan = replace(plan, timing=replace(plan.timing, lost_after_s=lost_after_s))
    return in_phase(new_run("t-20260101-000000", plan, epoch=1, at=0.0), Phase.RUNNING)


@pytest.mark.parametrize(("lost_after_s", "shown_until"), [(3600.0, 60.0), (60.0, 60.0), (20.0, 20.0)])
def test_who_has_come_back_is_shown_as_there_for_a_minute_and_never_longer_than_until_it_may_be_lost(
    lost_after_s: float, shown_until: float
) -> None:
    run = running(lost_after_s)
    run = run.with_host(replace(run.hosts[0], link=Link.CONNECTED, heard_at=100.0, back_at=100.0))
    assert {host.name: at for host, at in silent_at(run)}["a"] == 100.0 + shown_until


@pytest.mark.parametrize(("lost_after_s", "patience_s"), [(3600.0, 3600.0), (5.0, SWEEP_WAIT_S)])
def test_an_end_that_was_ordered_gives_no_host_up_sooner_than_its_silence_would(
    lost_after_s: float, patience_s: float
) -> None:
    turn = Turn(running(lost_after_s), 100.0)
    stop_all(turn, Intent.RESTART, "because")
    assert turn.run.within(Stopping).deadline_at == 100.0 + patience_s
    turn = Turn(running(lost_after_s), 100.0)
    stop_all(turn, Intent.KILL, "killed")
    grace_s = turn.run.plan.timing.kill_grace_s
    assert turn.run.within(Stopping).deadline_at == 100.0 + grace_s + SWEEP_WAIT_S, "a person waits"


def test_what_was_told_of_a_tasks_end_stays_known_when_its_host_is_lost() -> None:
    run = new_run("t", make_plan(["a", "b"], checkpoint=False), epoch=1, at=0.0)
    task = replace(run.tasks[0], exit=Exit(Cause.HOST_LOST, code=137, at=4.0))
    turn = Turn(run.with_task(task), 9.0)
    lose(turn, task)
    lose(turn, run.tasks[1])
    known, unknown = (task.exit for task in turn.run.tasks)
    assert (known and known.code, known and known.at) == (137, 4.0)
    assert unknown == Exit(Cause.HOST_LOST, at=9.0)
