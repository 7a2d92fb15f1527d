"""What a host's report changes: levels in, beliefs out. What comes next is decided in the modules of the phases."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.core.actions import StopTask
from orchestrator.core.diagnosis import cause
from orchestrator.core.events import HostReported, TaskReport
from orchestrator.core.hosts import checkpoint_dir, host_state
from orchestrator.core.model import Cause, Exit, Host, Link, Phase, Running, Task, TaskPhase
from orchestrator.core.notes import NoteKind, said_by_runtime
from orchestrator.core.restart_scope import is_individual
from orchestrator.core.turn import Turn
from orchestrator.core.words import duration

_PHASES = {"starting": TaskPhase.STARTING, "ready": TaskPhase.READY, "running": TaskPhase.RUNNING}

_NOBODY_IS_ENDED = (Phase.RENDEZVOUS, Phase.RUNNING)
"""Phases in which no task is stopped by order, but one that is ended alone."""

_ORDER = (TaskPhase.WAITING, TaskPhase.STARTING, TaskPhase.READY, TaskPhase.RELEASED, TaskPhase.RUNNING)
"""A task goes through these once in its generation."""


def absorb(turn: Turn, event: HostReported) -> None:
    """Believe what the host says of the current generation; end what it holds of older ones."""
    host = turn.run.host(event.host)
    _hear(turn, host, event)
    here = {task.id: task.generation for task in turn.run.tasks if task.host == host.name}
    current = {r.task: r for r in event.tasks if r.generation == here.get(r.task)}
    # Of this host or, where tasks have moved since, of one that holds nothing now.
    older = [
        report
        for report in event.tasks
        if report.generation < here.get(report.task, turn.run.generation_last + 1)
        and report.phase != "exited"
    ]
    for report in older:
        turn.do(StopTask(host=host.name, task=report.task, generation=report.generation, grace_s=0.0))
    given_up = {task.id for task in turn.run.tasks if task.phase is TaskPhase.LOST}
    living = {report.task for report in event.tasks if report.phase != "exited"}
    host_state.heard(turn, host.name, holds_tasks=bool(older or given_up & living))
    for task in turn.run.tasks:
        if task.host != host.name:
            continue
        if task.id in current and current[task.id].phase == "unknown":
            _is_there_after_all(turn, task)
        elif task.id in current:
            _absorb_task(turn, task, current[task.id])
        elif task.pid is not None and task.phase.may_live:
            _gone_without_record(turn, task)


def _hear(turn: Turn, host: Host, event: HostReported) -> None:
    if host.link is Link.UNREACHABLE:
        turn.note(
            NoteKind.HOST_BACK, f"{host.name} is reachable again after {duration(turn.at - host.since_at)}"
        )
        host = turn.set_host(host, back_at=turn.at)
    was_cut_off = host_state.is_cut_off(turn.run)
    turn.set_host(
        host,
        link=Link.CONNECTED,
        since_at=host.since_at if host.link is Link.CONNECTED else turn.at,
        heard_at=turn.at,
        problem=None if host.facts is not None else host.problem,  # what keeps it from serving the run
        cpu_percent=event.cpu_percent,
        memory_percent=event.memory_percent,
    )
    if was_cut_off and turn.run.phase is Phase.RUNNING and not host_state.is_cut_off(turn.run):
        turn.set_phase(connected_again_at=turn.at)
    checkpoint_dir.heard(turn, host, event)


def _absorb_task(turn: Turn, task: Task, report: TaskReport) -> None:
    """One task, as its host sees it now."""
    adopting = (
        task.heard_at is None and task.pid is not None
    )  # known from the journal, not heard in this epoch
    _forgive_silence(turn, task)
    task = turn.set_task(
        task,
        pid=report.pid or task.pid,
        port=report.port or task.port,
        progress=report.progress,
        heard_at=turn.at,
    )
    _say(turn, task, report)
    _follow_steps(turn, turn.run.task(task.id))
    task = turn.run.task(task.id)
    if report.phase == "exited":
        if task.phase is not TaskPhase.EXITED:
            _record_exit(turn, task, report.exit or Exit(cause=Cause.SHIM, at=turn.at))
        elif adopting and task.exit is not None and report.exit is not None:
            # The journal's instant has moved with the coordinators' absence, and the others' ends have not.
            turn.set_task(task, exit=replace(task.exit, at=report.exit.at))
        return
    if task.phase is TaskPhase.EXITED:
        return
    if turn.run.phase.is_terminal:
        turn.do(StopTask(host=task.host, task=task.id, generation=task.generation, grace_s=0.0))
        return
    if task.phase is TaskPhase.LOST:
        task = _is_there_after_all(turn, task)
        if task.phase is TaskPhase.LOST:
            return
    if adopting and report.pid is not None:
        turn.note(
            NoteKind.ADOPTED,
            f"{task.id} on {task.host} keeps running; adopted by this coordinator (pid {report.pid})",
            task.id,
        )
    phase = _PHASES[report.phase]
    if _ORDER.index(phase) > _ORDER.index(
        task.phase
    ):  # a report that was sent before a release takes nothing back
        turn.set_task(task, phase=phase)


def _forgive_silence(turn: Turn, task: Task) -> None:
    """Where the position was while its task was not heard nobody knows: silence is no pause of the training."""
    run, heard_at = turn.run, task.heard_at
    silent = heard_at is None or turn.at - heard_at > run.plan.timing.unreachable_after_s
    if silent and task.id == run.chief:
        turn.forgive_standstill()


def _is_there_after_all(turn: Turn, task: Task) -> Task:
    """Take back a loss: the task may have a process, and no new generation starts beside it."""
    unkillable = task.exit is not None and bool(task.exit.left)
    if task.phase is not TaskPhase.LOST or unkillable or turn.run.phase.is_terminal:
        return task
    turn.do(StopTask(host=task.host, task=task.id, generation=task.generation, grace_s=0.0))
    return turn.set_task(task, phase=TaskPhase.RUNNING)


def _follow_steps(turn: Turn, task: Task) -> None:
    """Remember the generation's first step, and when the run last got further than ever."""
    now = task.progress.global_step
    if now is None:
        return
    if task.id == turn.run.chief:
        _follow_pace(turn, now)
    if task.first_step is None:
        turn.set_task(task, first_step=now)
    if turn.run.best_step is None or now > turn.run.best_step:
        # When it was made, and not when it was reported: until then the host that went silent since may have helped.
        stepped_at = turn.at - task.progress.step_age_s - task.progress.heartbeat_age_s
        turn.set(best_step=now)
        running = turn.run.phase_state
        if isinstance(running, Running) and not is_individual(turn.run, task):
            turn.set_phase(progress_at=max(running.progress_at, stepped_at))


def _follow_pace(turn: Turn, step: int) -> None:
    """Learn from a move of the chief's position, however far."""
    running = turn.run.phase_state
    if not isinstance(running, Running) or step == running.position:
        return
    if running.position_at is not None:
        turn.set(longest_pause_s=max(turn.run.longest_pause_s or 0.0, turn.at - running.position_at))
    turn.set_phase(position=step, position_at=turn.at)


def _say(turn: Turn, task: Task, report: TaskReport) -> None:
    """Pass on what the runtime said, each sentence once."""
    fresh = [(kind, message) for kind, message in report.said if message not in task.said]
    for kind, message in fresh:
        turn.note(said_by_runtime(kind), f"{task.id}: {message}", task.id)
    if fresh:
        turn.set_task(task, said=(*task.said, *(message for _, message in fresh)))


def _record_exit(turn: Turn, task: Task, ended: Exit) -> None:
    if ended.cause is Cause.ORDERED and task.ending is None and turn.run.phase in _NOBODY_IS_ENDED:
        # Ordered by nobody here: for the run it is an end like any other.
        ended = replace(ended, cause=Cause.SIGNAL if ended.signal else Cause.SCRIPT)
    ended = cause.classify(ended)
    turn.set_task(task, phase=TaskPhase.EXITED, exit=ended)
    turn.note(
        NoteKind.TASK_EXITED,
        f"{task.id} on {task.host} {cause.how(ended)}",
        task.id,
        cause=ended.cause.value,
        exit_code=ended.code,
        signal=ended.signal,
        ended_time=ended.ended_time,
    )


def _gone_without_record(turn: Turn, task: Task) -> None:
    """Lose a task whose host answers and has no record of it: its directory is gone."""
    ended = Exit(cause=Cause.HOST_LOST, at=turn.at)
    turn.set_task(task, phase=TaskPhase.LOST, exit=ended)
    turn.note(NoteKind.TASK_LOST, f"{task.host} has no record of {task.id} any more", task.id)
