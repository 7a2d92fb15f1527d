"""Which survivors are asked to hand over their state, how long they have, and what the next generation has of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.core import gang
from orchestrator.core.actions import Note
from orchestrator.core.measured import TaskMeasures
from orchestrator.core.notes import NoteKind
from orchestrator.core.phases import host_reports, rescue
from orchestrator.core.plan import CheckpointPlan, TaskId
from orchestrator.core.saving import Holds, Rescued
from orchestrator.core.state.checkpoint import Checkpoint
from orchestrator.core.state.host import Link
from orchestrator.core.state.phase_states import Intent, Phase, Stopping
from orchestrator.core.state.run import Run, new_run
from orchestrator.core.state.task import TaskPhase
from orchestrator.core.turn import Turn
from tests.unit.core.phases import in_phase
from tests.unit.core.transcript import make_plan

W0, W1, W2 = (TaskId("worker", index) for index in range(3))
TRIED: TaskMeasures = {"rescue": "315.0 MB in 2.1 s"}


def training(*, gone: TaskId | None = W2, shared: bool = True, steps_per_s: float | None = None) -> Run:
    """Three workers at step 240, where step 100 was verified."""
    plan = make_plan(["a", "b", "c"], checkpoint=True)
    plan = replace(
        plan,
        restart=replace(plan.restart, rescue_s=30.0),
        checkpoint=CheckpointPlan("/shared/t", shared=shared),
    )
    run = new_run("t-20260101-1", plan, epoch=1, at=0.0)
    tasks = tuple(
        replace(
            task,
            phase=TaskPhase.EXITED if task.id == gone else TaskPhase.RUNNING,
            generation=1,
            first_step=1,
            progress=replace(
                task.progress,
                global_step=240,
                measured=TRIED if steps_per_s is None else {**TRIED, "steps_per_s": steps_per_s},
                rescues=True,
            ),
        )
        for task in run.tasks
    )
    hosts = tuple(replace(host, link=Link.CONNECTED) for host in run.hosts)
    run = replace(run, tasks=tasks, hosts=hosts, generation=1, reached_step=240)
    return in_phase(run, Phase.RUNNING)


def asked(
    run: Run, intent: Intent = Intent.RESTART, *, at: float = 50.0, is_saved: bool = False
) -> Stopping | None:
    """Return the phase in which survivors are asked; None where nobody is."""
    stopping = Stopping(intent=intent, deadline_at=at + 9.0)
    wanted = rescue.wanted(run, intent, at, 9.0, is_saved=is_saved)
    return replace(stopping, **wanted) if wanted else None


@pytest.mark.parametrize(("pace", "bound_s"), [(None, 5.0), (140.0, 5.0), (10.0, 14.0), (1.0, 30.0)])
def test_it_may_take_as_long_as_what_would_be_lost_took_and_the_patience_comes_after_it(
    pace: float | None, bound_s: float
) -> None:
    run = replace(training(steps_per_s=pace), checkpoint=Checkpoint(100, "ckpt-100", 1, 40.0))
    found = asked(run)
    assert found is not None
    assert found.survivors == (W0, W1)
    assert found.rescue_ends_at == 50.0 + bound_s
    assert found.compare_ends_at == 50.0 + bound_s / 2
    assert found.deadline_at == 50.0 + bound_s + 9.0


def test_who_has_not_tried_it_yet_has_longer_however_little_would_be_lost() -> None:
    run = training(steps_per_s=140.0)
    run = run.with_task(
        replace(run.task(W1), progress=replace(run.task(W1).progress, measured={"steps_per_s": 140.0}))
    )
    found = asked(run)
    assert found is not None
    assert found.rescue_ends_at == 50.0 + rescue.UNTRIED_S
    of_user = replace(run, plan=replace(run.plan, restart=replace(run.plan.restart, rescue_s=10.0)))
    found = asked(of_user)
    assert found is not None
    assert found.rescue_ends_at == 60.0


def test_who_is_not_connected_is_not_asked_and_one_alone_need_not_compare() -> None:
    run = training()
    found = asked(run.with_host(replace(run.host("b"), link=Link.UNREACHABLE)))
    assert found is not None
    assert (found.rescuer, found.survivors, found.compare_ends_at) == (W0, (), None)
    found = asked(run.with_task(replace(run.task(W1), first_step=None)))
    assert found is not None
    assert found.rescuer == W0, "it has trained nothing"


def test_without_a_shared_directory_only_the_chief_can_write() -> None:
    assert asked(training(shared=False)) is not None
    assert asked(training(gone=W0, shared=False)) is None
    assert asked(training(gone=W0)) is not None


def test_where_nothing_has_failed_all_must_be_able_to() -> None:
    run = training(gone=None)
    assert asked(run) is None, "all live: it is not known which of them stands still"
    ready = [asked(run, Intent.RESCHEDULE), asked(run, Intent.KILL, is_saved=True)]
    assert [one and one.rescue_ends_at for one in ready] == [80.0, 80.0]
    assert asked(run, Intent.KILL) is None
    assert not gang.may_stop_at_next_step(replace(run, plan=replace(run.plan, checkpoint=None)))
    task = run.task(W1)
    run = run.with_task(replace(task, progress=replace(task.progress, rescues=False)))
    assert asked(run, Intent.RESCHEDULE) is None
    assert asked(run, Intent.KILL, is_saved=True) is None


@pytest.mark.parametrize(("handed_over", "kept"), [(None, 100), (99, 100), (241, 241)])
def test_the_next_generation_has_the_newer_of_what_was_verified_and_what_was_handed_over(
    handed_over: int | None, kept: int
) -> None:
    run = replace(training(), checkpoint=Checkpoint(100, "ckpt-100", 1, 40.0))
    task = run.task(W0)
    rescued = Rescued(handed_over, 0.3) if handed_over is not None else None
    run = run.with_task(replace(task, progress=replace(task.progress, rescued=rescued)))
    assert gang.kept_step(in_phase(run, Phase.STOPPING, rescuer=W0)) == kept


@pytest.mark.parametrize(
    ("held", "shared", "waits", "chosen"),
    [
        ({}, True, True, W0),
        ({W1: 241}, True, True, W1),
        ({W0: 241, W1: 241}, True, False, W0),
        ({W0: 240, W1: 241}, True, False, W1),
        ({W0: 240, W1: 241}, False, False, W0),
        ({W0: None, W1: 240}, True, False, W1),
        ({W0: None}, True, True, None),
        ({W0: None, W1: 241}, False, False, None),
    ],
)
def test_of_several_the_furthest_that_can_write_is_chosen_once_all_have_said_what_they_hold_or_that_it_is_nothing(
    held: dict[TaskId, int | None], shared: bool, waits: bool, chosen: TaskId | None
) -> None:
    run = training(shared=shared)
    for name, step in held.items():
        task = run.task(name)
        progress = (
            replace(task.progress, rescued=Rescued(None, 0.0, "it is of no step"))
            if step is None
            else replace(task.progress, holds=Holds(step, 7))
        )
        run = run.with_task(replace(task, progress=progress))
    phase = {"survivors": (W0, W1), "compare_ends_at": 52.5, "rescue_ends_at": 55.0, "deadline_at": 64.0}
    run = in_phase(run, Phase.STOPPING, **phase)
    assert rescue.is_compared(run, 52.4) is not waits
    assert rescue.is_compared(run, 52.5)
    assert gang.handover_s(run, run.task(W1), 51.0) == 4.0
    turn = Turn(run, 52.5)
    rescue.choose(turn)
    asked = [task.id for task in turn.run.tasks if gang.handover_s(turn.run, task, 52.5) is not None]
    assert asked == [chosen] * (chosen is not None)
    for host, task_there in (("a", W0), ("b", W1)):
        turn = Turn(run.with_host(replace(run.host(host), link=Link.UNREACHABLE)), 52.5)
        rescue.choose(turn)
        assert turn.run.within(Stopping).rescuer != task_there, "its host was cut off meanwhile"


def test_nobody_hands_over_for_longer_than_the_spec_says_although_a_clock_was_set_back() -> None:
    run = in_phase(training(), Phase.STOPPING, rescuer=W0, rescue_ends_at=80.0)
    assert gang.handover_s(run, run.task(W0), 20.0) == 30.0
    assert gang.handover_s(run, run.task(W0), 81.0) == 0.0


def test_of_three_the_one_that_differs_is_named() -> None:
    run = training(gone=None)
    for name, checksum in ((W0, 7), (W1, 8), (W2, 7)):
        task = run.task(name)
        run = run.with_task(replace(task, progress=replace(task.progress, holds=Holds(241, checksum))))
    run = in_phase(run, Phase.STOPPING, survivors=(W0, W1, W2))
    assert rescue.outcome(run) == (
        "nothing was rescued: replicas have diverged: at step 241 the weights of worker:1 are not those of the other "
        "workers"
    )


@pytest.mark.parametrize(
    ("handed_over", "data"),
    [
        (Rescued(241, 0.3), {"global_step": 241, "took_s": 0.3}),
        (Rescued(None, 0.0, "it is of no step"), {"why": "it is of no step"}),
    ],
)
def test_what_was_handed_over_or_why_nothing_was_is_told_once_to_programs_too(
    handed_over: Rescued, data: dict[str, object]
) -> None:
    run = training()
    task = run.task(W0)
    told = replace(task, progress=replace(task.progress, rescued=handed_over))
    turn = Turn(run, 51.0)
    host_reports._rescued(turn, None, told)
    host_reports._rescued(turn, handed_over, told)
    (note,) = turn.actions
    assert isinstance(note, Note)
    assert (note.kind, note.data) == (NoteKind.RESCUED, data)
