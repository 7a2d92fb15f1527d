"""The standby: the next generation's tasks, started up to their gates while the present generation trains.

Most of a restart is the import of TensorFlow. A standby has done that before anything fails, so that its tasks only
need their release. It has a generation's number of its own, with that generation's directory and ports, and nothing of
it may train before `starting.begin_generation` has taken it. It is of use only while the next generation would have the
same tasks on the same hosts, and no higher number was given out. What becomes of it is never a failure of the run: it
is started again a few times, and then no more. A run that ends waits until its standby is gone, as for its tasks.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from orchestrator.core.actions import Action, StartTask, StopTask
from orchestrator.core.events import HostReported, OrderFailed, TaskReport
from orchestrator.core.generations import highest_told, next_generation
from orchestrator.core.hosts import slots
from orchestrator.core.hosts.slots import Assignment
from orchestrator.core.instants import Deadline, is_due
from orchestrator.core.model import (
    Backoff,
    Cause,
    HostState,
    Intent,
    Link,
    Run,
    Running,
    Standby,
    Stopping,
    Task,
    TaskPhase,
)
from orchestrator.core.notes import NoteKind
from orchestrator.core.placement import assigned
from orchestrator.core.plan import Plan, TaskId
from orchestrator.core.restart_scope import is_individual
from orchestrator.core.roster import Roster
from orchestrator.core.strategy import STRATEGIES
from orchestrator.core.turn import Turn
from orchestrator.core.words import counted, duration, size

STEADY_HEARTBEATS = 10
"""How many heartbeats a generation trains before its standby is started: what fails, mostly fails early."""

UNTOLD_S = 60.0
"""The same after its release, where a script tells no position."""

FAILURES_MAX = 3
"""How many times a standby may be lost in one generation; then no other is started."""

TASK_BYTES = 400 << 20
"""What a process takes that has imported TensorFlow and Keras, and nothing else. No GPU memory."""

MEMORY_SHARE = 4
"""`auto`: on each host a standby may take this fraction, 1/4, of the memory that is free."""

MEMORY_FULL_PERCENT = 95.0
"""`auto`: a host that is as full as that gets the memory of its standby back."""

_PHASES = {"starting": TaskPhase.STARTING, "ready": TaskPhase.READY}


def is_wanted(plan: Plan) -> bool:
    """Return whether a run with this plan has a standby at all."""
    return plan.restart.standby != "off" and plan.runtime and STRATEGIES[plan.strategy].standby


def schedule(turn: Turn, *, trains: bool) -> None:
    """Have a standby started some time after the release, or, where it `trains`, after the chief's first step."""
    if is_wanted(turn.run.plan):
        _set(turn, start_at=turn.at + (_steady_s(turn.run) if trains else UNTOLD_S))


def _steady_s(run: Run) -> float:
    return STEADY_HEARTBEATS * run.plan.timing.heartbeat_s


def due(run: Run) -> list[Deadline | None]:
    """Return when something happens by itself: the start, or the end of the patience with it."""
    standby = run.standby
    if standby.tasks:
        return [standby.join_at]
    return [standby.start_at] if isinstance(run.phase_state, Running) else []


def advance(turn: Turn) -> None:
    """Start a standby when it is time for it, and end one that is of no use any more."""
    if not turn.run.standby.tasks:
        if due(turn.run) and is_due(turn.run.standby.start_at, turn.at):
            _start(turn)
        return
    for task in turn.run.standby.tasks:
        host = turn.run.host(task.host)
        if task.phase.may_live and (host.state is HostState.LOST or host.gone):
            _set_task(turn, task, phase=TaskPhase.LOST)
    standby = turn.run.standby
    why = _useless(turn.run) if not standby.ended else None
    if not is_living(turn.run):
        _forget(turn)
    elif why is not None:
        end(turn, why)
    elif is_due(standby.join_at, turn.at):
        _fail(turn, f"did not join within {duration(turn.run.plan.timing.start_after_s)}")
    elif standby.join_at is not None and all(task.phase is TaskPhase.READY for task in standby.tasks):
        _set(turn, join_at=None)
        turn.note(
            NoteKind.STANDBY_READY,
            f"{_named(standby)} is ready: {counted(len(standby.tasks), 'task')} have imported and wait",
        )


def is_living(run: Run) -> bool:
    """Return whether there are, or may be, processes of it."""
    return any(task.phase.may_live for task in run.standby.tasks)


def take(turn: Turn, assignment: Assignment) -> tuple[Task, ...]:
    """Return the standby's tasks for the generation that begins; none where they do not fit, and they are ended."""
    run, standby = turn.run, turn.run.standby
    if standby.tasks and not standby.ended:
        placed = {task.id: task.host for task in assigned(run.plan, assignment.replacements)}
        fits = placed == {task.id: task.host for task in standby.tasks} and _useless(run) is None
        if (
            fits
            and highest_told(run) < standby.generation
            and all(task.phase.may_live for task in standby.tasks)
        ):
            turn.set(standby=Standby())
            # They have been heard: a task that another coordinator knew, and this one has not heard, is adopted.
            return tuple(
                replace(task, heard_at=turn.at) if task.pid is not None else task for task in standby.tasks
            )
        end(turn, "the next generation is placed elsewhere")
    _set(turn, start_at=None, failures=0)
    return ()


def end(turn: Turn, why: str) -> None:
    """End its tasks. They are waited for only where the run ends."""
    _set(turn, ended=why, start_at=None, join_at=None)
    turn.do(*(_stop(task) for task in turn.run.standby.tasks if task.phase.may_live))


def lose(turn: Turn) -> None:
    """Give up on those that have not ended in time. The proof names what is left of them."""
    for task in turn.run.standby.tasks:
        if task.phase.may_live:
            _set_task(turn, task, phase=TaskPhase.LOST)


def holds(run: Run, report: TaskReport) -> bool:
    """Return whether a report is about a task of the standby that may live."""
    task = run.standby.find(report.task, report.generation)
    return task is not None and task.phase.may_live and not run.standby.ended


def absorb(turn: Turn, event: HostReported) -> None:
    """Believe what a host says of the standby's tasks there."""
    here = turn.run.standby.tasks_on(event.host)
    if not here:
        return
    told = {report.task: report for report in event.tasks if report.generation == here[0].generation}
    for task in here:
        if task.phase.may_live:
            _absorb(turn, task, told.get(task.id))
    is_full = event.memory_percent is not None and event.memory_percent >= MEMORY_FULL_PERCENT
    if is_full and turn.run.plan.restart.standby == "auto" and not turn.run.standby.ended:
        _fail(turn, f"takes memory that {event.host} needs: {event.memory_percent:.0f} % are in use")


def _absorb(turn: Turn, task: Task, told: TaskReport | None) -> None:
    if told is None:
        if task.pid is not None:
            _gone(turn, task, f"{task.host} has no record of {task.id} any more")
    elif told.phase == "exited":
        is_oom = told.exit is not None and told.exit.cause is Cause.OOM
        _gone(turn, task, f"{task.id} on {task.host} " + ("ran out of memory" if is_oom else "ended"))
    elif told.phase == "running":
        if not turn.run.standby.ended:
            _fail(turn, f"was released by somebody else: {task.id} on {task.host} runs")
    elif told.phase in _PHASES:
        phase = TaskPhase.READY if task.phase is TaskPhase.READY else _PHASES[told.phase]
        rss_bytes = told.progress.rss_bytes or task.progress.rss_bytes
        known = (task.phase, task.pid, task.port, task.progress.rss_bytes)
        if known != (phase, told.pid, told.port, rss_bytes):
            progress = replace(task.progress, rss_bytes=rss_bytes)
            _set_task(turn, task, phase=phase, pid=told.pid, port=told.port, progress=progress)


def believed(run: Run, host: str) -> list[tuple[object, ...]]:
    """Return what is decided by of the standby's tasks on a host, and what the next coordinator needs of them."""
    return [(task.phase, task.pid, task.port) for task in run.standby.tasks_on(host)]


def outstanding(run: Run, name: str) -> list[Action]:
    """Return the orders to a host about the standby that are not known to be done."""
    if run.standby.ended:
        return [_stop(task) for task in run.standby.tasks_on(name) if task.phase.may_live]
    return [
        StartTask(host=name, task=task.id, generation=task.generation, standby=True)
        for task in run.standby.tasks_on(name)
        if task.phase is TaskPhase.STARTING and task.pid is None and run.host(name).facts is not None
    ]


def order_failed(turn: Turn, task: Task, event: OrderFailed) -> None:
    """Take that a host could not start or stop one of its tasks."""
    if event.order == "start":
        _gone(turn, task, f"could not be started on {task.host}")
    elif event.order == "stop" and event.problem.code == "no-task":
        _set_task(turn, task, phase=TaskPhase.EXITED)


def _start(turn: Turn) -> None:
    """Order all tasks of the next generation, as the present one is placed."""
    run = turn.run
    if why_not(run) is not None:
        _set(turn, start_at=turn.at + _steady_s(run))
        return
    generation = next_generation(run)
    tasks = [Task(task.id, task.host, generation, TaskPhase.STARTING) for task in run.tasks]
    turn.set(
        generation_last=generation,
        standby=Standby(
            generation=generation,
            tasks=tuple(tasks),
            since_at=turn.at,
            join_at=turn.at + run.plan.timing.start_after_s,
            failures=run.standby.failures,
        ),
    )
    turn.do(*(StartTask(task.host, task.id, generation, standby=True) for task in tasks))


def why_none(run: Run) -> str:
    """Return why a run that trains has no standby now."""
    if run.standby.failures >= FAILURES_MAX:
        return f"{counted(FAILURES_MAX, 'standby')} were lost in this generation"
    return why_not(run) or "it is started once the run has trained for a while"


def why_not(run: Run) -> str | None:
    """Return why no standby can be started now; None where one can."""
    away = [host.name for host in run.assignees if host.link is not Link.CONNECTED or host.facts is None]
    if away:
        return f"{', '.join(away)} is not connected"
    coming = [task for task in run.tasks if task.phase is not TaskPhase.RUNNING and not task.phase.is_gone]
    if coming or any(task.phase.is_gone and not is_individual(run, task) for task in run.tasks):
        return "not all tasks are running"
    assignment = slots.next_assignment(run)
    if dict(assignment.replacements) != dict(run.replacements) or assignment.waits_for:
        return "the next generation will have other hosts"
    if run.plan.restart.standby == "auto":
        for host in run.assignees:
            wanted = TASK_BYTES * len(run.tasks_on(host.name))
            if host.memory_available_bytes is None or host.memory_available_bytes < MEMORY_SHARE * wanted:
                free = "unknown" if host.memory_available_bytes is None else size(host.memory_available_bytes)
                return f"it would take {size(wanted)} of {host.name}, where {free} is free"
    return None


def _useless(run: Run) -> str | None:
    """Return why the standby cannot become the next generation; None where it may."""
    match run.phase_state:
        case Running() | Backoff() | Stopping(intent=Intent.RESTART):
            pass
        case Stopping(intent=Intent.RESCHEDULE):
            return "the tasks change places"
        case _:
            return "the run ends"
    if run.standby.generation != run.generation_last:
        return "a higher generation has begun"
    for task in run.standby.tasks:
        host = run.host(task.host)
        if host.state is not HostState.OPEN:
            return f"{host.name} is {host.state.value}"
        if host.facts is None:
            return f"{host.name} is prepared anew"
    return None


def _gone(turn: Turn, task: Task, why: str) -> None:
    _set_task(turn, task, phase=TaskPhase.EXITED)
    if not turn.run.standby.ended:
        _fail(turn, f"is lost: {why}")


def _fail(turn: Turn, why: str) -> None:
    """Count a standby that was lost, and end what is left of it."""
    standby = turn.run.standby
    _set(turn, failures=standby.failures + 1)
    is_last = standby.failures + 1 >= FAILURES_MAX
    then = "no other is started in this generation" if is_last else "training goes on, and another is started"
    turn.note(NoteKind.STANDBY_LOST, f"{_named(standby)} {why}; {then}")
    end(turn, why)


def _forget(turn: Turn) -> None:
    """Have the next one started, after longer and longer waits where they are lost again and again."""
    run, standby = turn.run, turn.run.standby
    turn.set(standby=Standby(start_at=standby.start_at, failures=standby.failures))
    is_over = standby.start_at is not None or standby.failures >= FAILURES_MAX
    if isinstance(run.phase_state, Running) and not is_over:
        _set(turn, start_at=turn.at + _steady_s(run) * 2**standby.failures)


def _named(standby: Standby) -> str:
    return f"the standby, generation {standby.generation},"


def _stop(task: Task) -> StopTask:
    return StopTask(host=task.host, task=task.id, generation=task.generation, grace_s=0.0)


def _set(turn: Turn, **changes: object) -> None:
    turn.set(standby=replace(turn.run.standby, **changes))  # type: ignore[arg-type]


def _set_task(turn: Turn, task: Task, **changes: object) -> None:
    changed = replace(task, **changes)  # type: ignore[arg-type]
    _set(turn, tasks=cast("Roster[TaskId, Task]", turn.run.standby.tasks).with_(changed))
