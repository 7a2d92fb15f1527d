"""A run rebuilt from its hosts is adopted with no restart, whatever has happened since its record was written."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.core import decide, rebuild
from orchestrator.core.actions import Action, Note, ReleaseTask, SeedCheckpoint, StartTask, StopTask
from orchestrator.core.causes import Cause
from orchestrator.core.deadlines import next_deadline
from orchestrator.core.ends import Exit
from orchestrator.core.events import (
    CheckpointSeeded,
    EpochBegan,
    Event,
    HostPrepared,
    HostReported,
    HostUp,
    Submitted,
    TaskReport,
    Ticked,
)
from orchestrator.core.notes import NoteKind
from orchestrator.core.plan import HostPlan, TaskId
from orchestrator.core.state.checkpoint import Seed
from orchestrator.core.state.host import Facts
from orchestrator.core.state.phase_states import Phase, Rendezvous, Running
from orchestrator.core.state.run import Run, new_run
from orchestrator.core.state.task import Progress, TaskPhase
from tests.unit.core.phases import in_phase
from tests.unit.core.transcript import make_plan

W0, W1 = TaskId("worker", 0), TaskId("worker", 1)
FACTS = Facts("3.11.2", {}, code="c0de", highest_generation=0)


def play(run: Run, *events: Event) -> tuple[Run, list[Action]]:
    done: list[Action] = []
    for event in events:
        run, actions, _ = decide.step(run, event)
        done += actions
    return run, done


def report(
    host: str, task: TaskId, phase: str, generation: int = 1, *, step: int | None = None, **more: object
) -> HostReported:
    told = TaskReport(task, generation, phase, pid=70 + task.index, port=20000 + task.index)
    return HostReported(
        50.0,
        host,
        (replace(told, progress=Progress(global_step=step), **more),),  # type: ignore[arg-type]
    )


def rendezvous() -> Run:
    run = new_run("t-20260101-000000", make_plan(["a", "b"], checkpoint=True), epoch=4, at=0.0)
    prepared = [HostPrepared(1.0, host, FACTS) for host in "ab"]
    up = [HostUp(0.5, host, "boot-1") for host in "ab"]
    return play(run, Submitted(0.0), *up, *prepared)[0]


def running() -> Run:
    ready = [report("a", W0, "ready"), report("b", W1, "ready")]
    seeded = CheckpointSeeded(3.0, Seed(generation=1, global_step=None))
    return play(rendezvous(), *ready, seeded)[0]


def told(*reports: HostReported) -> dict[str, tuple[TaskReport, ...]]:
    return {report.host: report.tasks for report in reports}


def adopt(run: Run, *reports: HostReported) -> tuple[Run, list[Action]]:
    up = [HostUp(1000.6, host, "boot-1") for host in "ab"]
    heard = [replace(report, at=1001.0) for report in reports]
    return play(run, EpochBegan(1000.5, 9), *up, *heard)


def rebuilt(record: Run, *reports: HostReported) -> Run:
    return rebuild.rebuilt(record, told(*reports), at=1000.0, written_at=50.0)


def kinds(actions: list[Action]) -> list[str]:
    return [type(action).__name__ for action in actions if not isinstance(action, Note)]


def test_a_released_run_is_taken_up_with_no_restart() -> None:
    record = running()
    assert record.phase is Phase.RUNNING
    now = (report("a", W0, "running", step=30), report("b", W1, "running", step=31))
    run, actions = adopt(rebuilt(record, *now), *now)
    assert run.phase is Phase.RUNNING
    assert [task.phase for task in run.tasks] == [TaskPhase.RUNNING] * 2
    assert (run.generation, run.budget.restarts, run.global_step) == (1, 0, 30)
    assert [action for action in kinds(actions) if action in ("StartTask", "StopTask")] == []
    adopted = [a for a in actions if isinstance(a, Note) and a.kind is NoteKind.ADOPTED]
    assert len(adopted) == 2


def test_a_record_from_before_the_release_does_as_well() -> None:
    record = rendezvous()
    assert record.phase is Phase.RENDEZVOUS
    now = (report("a", W0, "running", step=30), report("b", W1, "running", step=31))
    run, actions = adopt(rebuilt(record, *now), *now)
    assert (run.phase, run.generation) == (Phase.RUNNING, 1)
    assert "StartTask" not in kinds(actions)
    assert run.within(Running).verify_at is not None, "its checkpoints are looked at again"


def test_a_release_that_was_lost_is_repeated() -> None:
    now = (report("a", W0, "running", step=1), report("b", W1, "ready"))
    run, actions = adopt(rebuilt(running(), *now), *now)
    released = [action.task for action in actions if isinstance(action, ReleaseTask)]
    assert released == [W1]
    assert run.task(W1).phase is TaskPhase.RELEASED


def test_a_generation_that_had_not_been_released_waits_at_its_gate_as_before() -> None:
    now = (report("a", W0, "ready"), report("b", W1, "starting"))
    run, actions = adopt(rebuilt(rendezvous(), *now), *now)
    assert run.phase is Phase.RENDEZVOUS
    assert [action.generation for action in actions if isinstance(action, SeedCheckpoint)] == [1]
    assert not [action for action in actions if isinstance(action, StartTask)]
    assert run.within(Rendezvous).deadline_at == 1000.0 + run.plan.timing.start_after_s


def test_what_has_ended_meanwhile_is_learned_as_ever() -> None:
    ended = Exit(cause=Cause.SCRIPT, code=1, at=900.0)
    now = (report("a", W0, "running", step=30), report("b", W1, "exited", exit=ended))
    run, actions = adopt(rebuilt(running(), *now), *now)
    assert run.phase is Phase.STOPPING
    assert [action.task for action in actions if isinstance(action, StopTask)] == [W0]


def test_a_higher_generation_than_the_records_is_the_one_that_counts() -> None:
    now = (report("a", W0, "running", 3, step=30), report("b", W1, "running", 3, step=31))
    run, actions = adopt(rebuilt(running(), *now), *now)
    assert (run.generation, run.generation_last, run.phase) == (3, 3, Phase.RUNNING)
    assert "StopTask" not in kinds(actions)


def spared() -> Run:
    """Released on a and b; c is a spare that holds nothing."""
    plan = make_plan(["a", "b"], checkpoint=True)
    plan = replace(plan, hosts=(*plan.hosts, HostPlan("c", address="c", data_address="10.0.0.3", spare=True)))
    run = new_run("t-20260101-000000", plan, epoch=4, at=0.0)
    facts = [HostPrepared(1.0, host, FACTS) for host in "abc"]
    up = [HostUp(0.5, host, "boot-1") for host in "abc"]
    ready = [report("a", W0, "ready"), report("b", W1, "ready")]
    return play(run, Submitted(0.0), *up, *facts, *ready, CheckpointSeeded(3.0, Seed(1, global_step=100)))[0]


def test_a_task_that_moved_after_the_record_is_where_the_newest_generation_shows_it() -> None:
    now = (
        report("a", W0, "running", 2, step=60),
        report("b", W1, "running", 1, step=90),
        report("c", W1, "running", 2, step=60),
    )
    run, actions = adopt(rebuilt(spared(), *now), *now)
    assert (run.phase, run.generation, run.replacements) == (Phase.RUNNING, 2, {"b": "c"})
    assert [(task.host, task.generation) for task in run.tasks] == [("a", 2), ("c", 2)]
    stopped = [(action.host, action.generation) for action in actions if isinstance(action, StopTask)]
    assert stopped == [("b", 1)], "the older one is fenced, and no other is touched"
    assert not run.host("c").untouched, "it owes the proof at the end"
    assert run.problem is None, "what generation 1 began with says nothing of generation 2"


def test_a_newer_generation_that_is_not_complete_begins_again() -> None:
    now = (report("a", W0, "running", 2, step=60), report("b", W1, "running", 1, step=90))
    run, actions = adopt(rebuilt(running(), *now), *now)
    assert (run.phase, run.generation) == (Phase.STOPPING, 2)
    stopped = [(a.task, a.generation) for a in actions if isinstance(a, StopTask)]
    assert (W0, 2) in stopped
    assert (W1, 1) in stopped
    assert run.first_cause is not None
    assert "no trace of it was found on any host" in run.first_cause.sentence
    run, actions = play(
        run,
        report("a", W0, "exited", 2, exit=Exit(cause=Cause.ORDERED, at=1001.0)),
        Ticked(1100.0),
    )
    assert run.phase is Phase.RENDEZVOUS, "a lost journal is not the script's fault"
    assert run.budget.without_progress == 0
    assert {(a.task, a.generation) for a in actions if isinstance(a, StartTask)} == {(W0, 3), (W1, 3)}


def test_the_gates_of_a_generation_without_a_record_open_only_with_its_own_checkpoint() -> None:
    now = (report("a", W0, "ready", 2), report("b", W1, "ready", 2))
    run, actions = adopt(rebuilt(running(), *now), *now)
    assert (run.phase, run.generation) == (Phase.RENDEZVOUS, 2)
    assert [action.generation for action in actions if isinstance(action, SeedCheckpoint)] == [2]
    assert not [action for action in actions if isinstance(action, ReleaseTask)]


def test_a_release_whose_checkpoint_is_not_known_is_not_repeated() -> None:
    now = (report("a", W0, "running", step=130), report("b", W1, "ready"))
    run, actions = adopt(rebuilt(rendezvous(), *now), *now)
    assert run.phase is Phase.STOPPING
    assert not [action for action in actions if isinstance(action, ReleaseTask)]
    assert {action.task for action in actions if isinstance(action, StopTask)} == {W0, W1}
    assert run.first_cause is not None
    assert "the checkpoint that it was to start from is not known any more" in run.first_cause.sentence


def test_one_that_died_at_its_gate_opens_no_other() -> None:
    ended = Exit(cause=Cause.SCRIPT, code=1, at=900.0)
    now = (report("a", W0, "ready"), report("b", W1, "exited", exit=ended))
    run, actions = adopt(rebuilt(rendezvous(), *now), *now)
    assert not [action for action in actions if isinstance(action, ReleaseTask)]
    assert run.phase is Phase.STOPPING


def test_a_generation_that_has_moved_leaves_nobody_unaccounted_where_all_of_it_is_found() -> None:
    moved = told(report("a", W0, "running", 2), report("c", W1, "running", 2))
    assert rebuild.unaccounted(spared(), moved) == [], "b is silent, and holds nothing that counts"
    assert rebuild.unaccounted(spared(), told(report("a", W0, "running", 2))) == ["b", "c"]
    fewer = replace(spared(), replacements={"b": None}, tasks=spared().tasks[:1])
    assert rebuild.unaccounted(fewer, told(report("a", W0, "running", 2))) == ["b", "c"], "it may have grown"


def test_a_gang_that_was_numbered_anew_is_not_patched_together() -> None:
    run = new_run("t-20260101-000000", make_plan(["a", "b", "c"], checkpoint=False), epoch=4, at=0.0)
    up = [HostUp(0.5, host, "boot-1") for host in "abc"]
    record, _ = play(run, Submitted(0.0), *up, *(HostPrepared(1.0, host, FACTS) for host in "abc"))
    now = (report("a", W0, "running", 2), report("b", W1, "running", 1), report("c", W1, "running", 2))
    run = rebuilt(record, *now)
    assert {task.id: task.host for task in run.tasks} == {W0: "a", W1: "b", TaskId("worker", 2): "c"}
    assert [task.phase for task in run.tasks] == [TaskPhase.RUNNING, TaskPhase.LOST, TaskPhase.LOST]
    assert run.generation_last == 2


def test_a_worker_that_was_restarted_alone_keeps_a_bound_for_its_wait() -> None:
    plan = replace(make_plan(["a", "b", "c"], checkpoint=False), strategy="parameter_server")
    ids = (TaskId("chief", 0), TaskId("worker", 0), TaskId("ps", 0))
    tasks = tuple(replace(task, id=of) for task, of in zip(plan.tasks, ids, strict=True))
    run = new_run("t-20260101-000000", replace(plan, tasks=tasks), epoch=4, at=0.0)
    up = [HostUp(0.5, host, "boot-1") for host in "abc"]
    record, _ = play(run, Submitted(0.0), *up, *(HostPrepared(1.0, host, FACTS) for host in "abc"))
    chief, worker, server = ids
    now = (report("a", chief, "running"), report("b", worker, "starting", 2), report("c", server, "running"))
    run = rebuilt(record, *now)
    assert (run.generation, run.generation_last, run.phase) == (1, 2, Phase.RUNNING)
    assert run.task(worker).deadline_at == 1000.0 + plan.timing.start_after_s
    assert run.task(worker).phase is TaskPhase.STARTING
    older = (
        report("a", chief, "running", 3),
        report("b", worker, "running", 2),
        report("c", server, "running", 3),
    )
    run = rebuilt(record, *older)
    assert (run.generation, run.task(worker).phase) == (3, TaskPhase.LOST), "of the gang before: not adopted"


def test_a_host_that_does_not_answer_is_waited_for() -> None:
    record = running()
    heard = report("a", W0, "running", step=30)
    assert rebuild.unaccounted(record, told(heard)) == []
    run, _ = adopt(rebuilt(record, heard), heard)
    assert run.task(W1).phase is TaskPhase.RELEASED
    assert run.task(W1).pid == 71
    assert rebuild.unaccounted(rendezvous(), told(heard)) == ["b"], "nobody knows whether it has a process"


def test_time_stood_still_while_nobody_looked() -> None:
    now = (report("a", W0, "running", step=30), report("b", W1, "running", step=31))
    run = rebuilt(running(), *now)
    due = next_deadline(run)
    assert due is not None
    assert due >= 1000.0


def test_the_record_that_knows_most_is_taken() -> None:
    early, late = rendezvous(), running()
    assert rebuild.newest([]) is None
    assert rebuild.newest([((4, 0), late), ((4, 0), early)]) is late
    assert rebuild.newest([((4, 0), late), ((5, 0), early)]) is early, "a later coordinator's"
    assert rebuild.newest([((4, 2), early), ((4, 1), early), ((4, 3), late)]) is late
    ended = in_phase(late, Phase.KILLED)
    assert rebuild.newest([((4, 0), ended), ((4, 0), late)]) is ended, (
        "a host that was away when it ended knows less"
    )
    assert rebuild.newest([((4, 2), late), ((4, 1), ended)]) is late, "the later one of a coordinator's"
    ahead = replace(early, generation_last=2)
    assert rebuild.newest([((4, 0), late), ((4, 0), ahead)]) is ahead


def both(*reports: HostReported) -> HostReported:
    """One host's report of several generations of its task."""
    return replace(reports[0], tasks=tuple(task for one in reports for task in one.tasks))


def test_a_standby_is_not_taken_for_the_generation_that_trains() -> None:
    trains = (report("a", W0, "running", step=30), report("b", W1, "running", step=30))
    now = (both(trains[0], report("a", W0, "ready", 2)), both(trains[1], report("b", W1, "starting", 2)))
    run, actions = adopt(rebuilt(running(), *now), *now)
    assert (run.phase, run.generation, run.generation_last) == (Phase.RUNNING, 1, 2)
    stopped = [(action.task, action.generation) for action in actions if isinstance(action, StopTask)]
    assert stopped == [(W0, 2), (W1, 2)], "what the record does not know is not released, and ends"
    assert not [action for action in actions if isinstance(action, StartTask)]


def test_a_standby_of_which_one_peer_has_ended_is_still_one() -> None:
    ended = Exit(cause=Cause.SIGNAL, signal=9, at=900.0)
    now = (
        both(report("a", W0, "running", step=30), report("a", W0, "ready", 2)),
        both(report("b", W1, "exited", exit=ended), report("b", W1, "ready", 2)),
    )
    assert rebuild.proven(running(), told(*now)) == 1
    assert rebuild.proven(running(), told(both(*now[1:]))) == 2, "nothing of the older one runs: it has begun"
