"""The standby: the next generation's tasks, started up to their gates while the present generation trains.

Importing TensorFlow takes most of a restart. A standby has done that before anything fails, so its tasks only need to
be released. It has a generation number of its own, with that generation's directory and ports, and none of its tasks
trains before `starting.begin_generation` has claimed it. It is useful only while the next generation would have the
same tasks on the same hosts, and no higher number was given out. A standby that fails is not a failure of the run: it
is started again a few times, and then no more. A run that ends waits until its standby is gone, as for its tasks.

Spares hold the tasks that they may have to take over (`hosts/standby_places.py`), so that a host that is lost costs no
import either. A task that is restarted alone is taken out of the standby: it gets the port of the one that has died,
and the gang's number is then of no use to the gang, so that the rest is renewed after a while.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from orchestrator.core.actions import StartTask, StopTask
from orchestrator.core.causes import Cause
from orchestrator.core.events import HostReported, OrderFailed, TaskReport
from orchestrator.core.gang import highest_reported, is_individual, next_generation
from orchestrator.core.hosts import slots, standby_places
from orchestrator.core.hosts.standby_places import fitting, is_covered, is_home, living, unfit, why_incomplete
from orchestrator.core.moments import Begins, RestartsAlone, Stepped
from orchestrator.core.notes import NoteKind
from orchestrator.core.plan import Plan, TaskId
from orchestrator.core.state.host import HostState, Link
from orchestrator.core.state.instants import Deadline, Instant, is_due
from orchestrator.core.state.phase_states import Backoff, Intent, Phase, Running, Stopping
from orchestrator.core.state.roster import Roster
from orchestrator.core.state.run import Run
from orchestrator.core.state.task import Standby, Task, TaskPhase
from orchestrator.core.strategy import STRATEGIES
from orchestrator.core.turn import Concern, Turn
from orchestrator.core.words import counted, duration

# Why a run has no standby now, or why the one that it has cannot become its next generation

FAILURES_MAX = 3
"""How many times a standby may be lost in one generation; then no other is started."""

_GOES_ON = (Intent.RESTART, Intent.RESCHEDULE)
"""What a run stops for that has another generation. Of one that is moved, a spare may hold the tasks."""


def is_wanted(plan: Plan) -> bool:
    """Return whether a run with this plan has a standby at all."""
    return plan.restart.standby != "off" and plan.runtime and STRATEGIES[plan.strategy].standby


def why_none(run: Run) -> str:
    """Return why a run that trains has no standby now, for people."""
    if run.standby.failures >= FAILURES_MAX:
        return f"{counted(FAILURES_MAX, 'standby')} were lost in this generation"
    return why_not(run) or "it is started once the run has trained for a while"


def why_not(run: Run) -> str | None:
    """Return why no standby can be started now; None if one can."""
    away = [host.name for host in run.assignees if host.link is not Link.CONNECTED or host.facts is None]
    if away:
        return f"{', '.join(away)} is not connected"
    coming = [task for task in run.tasks if task.phase is not TaskPhase.RUNNING and not task.phase.is_gone]
    if coming or any(task.phase.is_gone and not is_individual(run, task) for task in run.tasks):
        return "not all tasks are running"
    assignment = slots.next_assignment(run)
    if dict(assignment.replacements) != dict(run.replacements) or assignment.waits_for:
        return "the next generation will have other hosts"
    return standby_places.why_no_memory(run) if run.plan.restart.standby == "auto" else None


def why_useless(run: Run) -> str | None:
    """Return why the standby cannot become the next generation; None if it may."""
    if not isinstance(run.phase_state, Running | Backoff) and run.intent not in _GOES_ON:
        return "the run ends"
    if run.standby.generation != run.generation_last:
        return "a higher generation has begun"
    for task in run.standby.tasks:
        why = unfit(run.host(task.host)) if is_home(run, task) else None
        if why is not None and not is_covered(run, task):
            return why
    return None


STEADY_HEARTBEATS = 10
"""How many heartbeats a generation trains before its standby is started: what fails, mostly fails early."""


MEMORY_FULL_PERCENT = 95.0
"""`auto`: a host that is as full as that gets the memory of its standby back."""

_PHASES = {"starting": TaskPhase.STARTING, "ready": TaskPhase.READY}


def _schedule(turn: Turn, moment: Stepped) -> None:
    """Have a standby started some time after the chief's first step."""
    if not moment.is_first or turn.run.phase is not Phase.RUNNING:
        return
    is_there = turn.run.standby.tasks and not turn.run.standby.ended
    if is_wanted(turn.run.plan) and not is_there:
        _set(turn, start_at=turn.at + _steady_s(turn.run))


def _steady_s(run: Run) -> float:
    return STEADY_HEARTBEATS * run.plan.timing.heartbeat_s


def _due(run: Run) -> list[Deadline | None]:
    """Return the next deadline of the standby: its start, its renewal, or the end of the wait for tasks to join."""
    standby = run.standby
    starts = isinstance(run.phase_state, Running) and not (standby.tasks and standby.ended)
    return [standby.join_at, standby.start_at if starts else None, *standby_places.given_up_at(run).values()]


def _watch(turn: Turn) -> None:
    """Start a standby when it is due, and end one that has become useless."""
    if not turn.run.standby.tasks:
        if is_due(turn.run.standby.start_at, turn.at) and isinstance(turn.run.phase_state, Running):
            _start(turn)
        return
    # Give up the standby tasks on lost or silent hosts, and end those on spares that cannot be used
    until = standby_places.given_up_at(turn.run)
    for task in turn.run.standby.tasks:
        host = turn.run.host(task.host)
        if not task.phase.may_live:
            continue
        if host.state is HostState.LOST or host.gone or is_due(until.get(host.name), turn.at):
            _set_task(turn, task, phase=TaskPhase.LOST)
        elif not is_home(turn.run, task) and unfit(host) is not None and not turn.run.standby.ended:
            turn.do(_stop(task))
            _set_task(turn, task, phase=TaskPhase.LOST)
    standby = turn.run.standby
    why = why_useless(turn.run) if not standby.ended else None
    if not turn.run.standby.is_living:
        _forget(turn)
    elif why is not None:
        _end(turn, why)
    elif standby.ended:
        return
    elif standby.join_at is not None and all(task.phase is TaskPhase.READY for task in living(turn.run)):
        _set(turn, join_at=None)
        tasks = counted(len(living(turn.run)), "task")
        turn.note(NoteKind.STANDBY_READY, f"{_named(standby)} is ready: {tasks} have imported and wait")
    elif is_due(standby.join_at, turn.at):
        _late(turn)
    elif isinstance(turn.run.phase_state, Running):
        # Start another standby where this one lacks a task that was claimed, or a spare that can hold it now.
        # One that is still of use is not given up before another can be started.
        run, standby = turn.run, turn.run.standby
        why = why_incomplete(run)
        if standby.start_at is None:
            if why is not None and standby.is_ready:
                _set(turn, start_at=turn.at + _steady_s(run))
        elif is_due(standby.start_at, turn.at):
            is_kept = why is not None and standby_places.is_whole(run) and why_not(run) is not None
            _set(turn, start_at=turn.at + _steady_s(run) if is_kept else None)
            if why is not None and not is_kept:
                _end(turn, why)
                _set(turn, start_at=turn.at)


def _late(turn: Turn) -> None:
    """Give up tasks that have not joined in time: the whole standby, unless all of them are on spares."""
    late = [task for task in living(turn.run) if task.phase is not TaskPhase.READY]
    why = f"did not join within {duration(turn.run.plan.timing.start_after_s)}"
    if any(is_home(turn.run, task) for task in late):
        _fail(turn, why)
        return
    for name in dict.fromkeys(task.host for task in late):
        _lose_spare(turn, name, f"{why} on {name}")


def _claim_tasks(turn: Turn, moment: Begins) -> tuple[Task, ...]:
    """Remove the standby's tasks for the generation that begins, and return them; end a standby that does not fit.

    Tasks on spares that are not needed are ended, and watched until they are gone.
    """
    standby = turn.run.standby
    if standby.tasks and not standby.ended:
        taken = fitting(turn.run, moment.assignment) if why_useless(turn.run) is None else []
        if taken:
            places = {(task.id, task.host) for task in taken}
            left = tuple(task for task in living(turn.run) if (task.id, task.host) not in places)
            turn.set(standby=Standby())
            if left:
                turn.set(standby=Standby(standby.generation, left, standby.since_at))
                _end(turn, "others are released")
            return tuple(_heard(turn, task) for task in taken)
        _end(turn, "the next generation is placed elsewhere")
    _set(turn, start_at=None, failures=0, lost_on=())
    return ()


def _heard(turn: Turn, task: Task) -> Task:
    """Return a claimed task as one that was heard: one that this coordinator has not heard would be adopted."""
    return replace(task, heard_at=turn.at) if task.pid is not None else task


def _claim_task(turn: Turn, moment: RestartsAlone) -> Task | None:
    """Remove the standby's task for one that is restarted alone, on its host, and return it; None if there is none.

    The others stay at their gates, for other tasks that are restarted alone, until another standby is started.
    """
    run, standby = turn.run, turn.run.standby
    host = run.host(run.task(moment.task).host)
    waiting = standby.find(moment.task, host.name)
    if waiting is None or not waiting.phase.may_live or standby.ended:
        return None
    is_newest = standby.generation == run.generation_last and highest_reported(run) < standby.generation
    if not is_newest or unfit(host) is not None or host.link is not Link.CONNECTED:
        return None
    rest = tuple(task for task in standby.tasks if task is not waiting)
    _set(turn, tasks=rest, start_at=turn.at + _steady_s(run))
    return _heard(turn, waiting)


def _end(turn: Turn, why: str) -> None:
    """End the standby's tasks. The run waits for them only where it ends itself."""
    _set(turn, ended=why, start_at=None, join_at=None)
    turn.do(*(_stop(task) for task in turn.run.standby.tasks if task.phase.may_live))


def _lose(turn: Turn) -> None:
    """Give up standby tasks that have not ended in time. The proof will name their processes that are left."""
    is_over = is_due(turn.run.within(Stopping).deadline_at, turn.at)
    for task in turn.run.standby.tasks:
        if task.phase.may_live and is_over:
            _set_task(turn, task, phase=TaskPhase.LOST)


def _hear(turn: Turn, event: HostReported) -> None:
    """Update the standby's tasks on a host from its report."""
    here = turn.run.standby.tasks_on(event.host)
    if not here:
        return
    reports = {report.task: report for report in event.tasks if report.generation == here[0].generation}
    for task in here:
        if task.phase.may_live:
            _absorb(turn, task, reports.get(task.id))
    memory_percent = event.measured.get("memory_percent") or 0.0
    is_full = memory_percent >= MEMORY_FULL_PERCENT
    holds_any = any(task.phase.may_live for task in turn.run.standby.tasks_on(event.host))
    if is_full and holds_any and turn.run.plan.restart.standby == "auto" and not turn.run.standby.ended:
        why = f"takes memory that {event.host} needs: {memory_percent:.0f} % are in use"
        _lose_on(turn, here[0], why)


def _absorb(turn: Turn, task: Task, report: TaskReport | None) -> None:
    if report is None:
        if task.pid is not None:
            _gone(turn, task, f"{task.host} has no record of {task.id} any more")
    elif report.phase == "exited":
        is_oom = report.exit is not None and report.exit.cause is Cause.OOM
        _gone(turn, task, f"{task.id} on {task.host} " + ("ran out of memory" if is_oom else "ended"))
    elif report.phase == "running":
        if not turn.run.standby.ended:
            _fail(turn, f"was released by somebody else: {task.id} on {task.host} runs")
    elif report.phase in _PHASES:
        phase = TaskPhase.READY if task.phase is TaskPhase.READY else _PHASES[report.phase]
        measured = report.progress.measured or task.progress.measured
        known = (task.phase, task.pid, task.port, task.progress.measured.get("rss_bytes"))
        if known != (phase, report.pid, report.port, measured.get("rss_bytes")):
            progress = replace(task.progress, measured=measured)
            _set_task(turn, task, phase=phase, pid=report.pid, port=report.port, progress=progress)


def _repeats(run: Run, name: str, _at: Instant) -> list[StopTask] | list[StartTask]:
    if run.standby.ended:
        return [_stop(task) for task in run.standby.tasks_on(name) if task.phase.may_live]
    return [
        StartTask(host=name, task=task.id, generation=task.generation, standby=True)
        for task in run.standby.tasks_on(name)
        if task.phase is TaskPhase.STARTING and task.pid is None and run.host(name).facts is not None
    ]


def _order_failed(turn: Turn, event: OrderFailed) -> None:
    """Handle an order about one of its tasks that a host could not carry out."""
    task = turn.run.standby.find(event.task, event.host) if event.task is not None else None
    if task is None or task.generation != event.generation:
        return
    if event.order == "start":
        _gone(turn, task, f"could not be started on {task.host}")
    elif event.order == "stop" and event.problem.code == "no-task":
        _set_task(turn, task, phase=TaskPhase.EXITED)


def _start(turn: Turn) -> None:
    """Order the start of the next generation's tasks, placed as now, and of those that spares may take over."""
    run = turn.run
    if why_not(run) is not None:
        _set(turn, start_at=turn.at + _steady_s(run))
        return
    generation = next_generation(run)
    places = [*((task.id, task.host) for task in run.tasks), *standby_places.on_spares(run)]
    tasks = [Task(task, host, generation, TaskPhase.STARTING) for task, host in places]
    for name in dict.fromkeys(host for _, host in places):
        # The host has to be searched for what is left of the run.
        turn.set_host(turn.run.host(name), untouched=False)
    turn.set(
        generation_last=generation,
        standby=Standby(
            generation=generation,
            tasks=tuple(tasks),
            since_at=turn.at,
            join_at=turn.at + run.plan.timing.start_after_s,
            failures=run.standby.failures,
            lost_on=run.standby.lost_on,
        ),
    )
    turn.do(*(StartTask(task.host, task.id, generation, standby=True) for task in tasks))


def _gone(turn: Turn, task: Task, why: str) -> None:
    _set_task(turn, task, phase=TaskPhase.EXITED)
    if not turn.run.standby.ended:
        _lose_on(turn, task, f"is lost: {why}")


def _lose_on(turn: Turn, task: Task, why: str) -> None:
    """Count a lost task: against the whole standby where it was on its own host, else against the spare."""
    if is_home(turn.run, task):
        _fail(turn, why)
    else:
        _lose_spare(turn, task.host, why)


def _lose_spare(turn: Turn, name: str, why: str) -> None:
    """Count a loss against a spare, and end the standby's other tasks there. Those elsewhere stay useful."""
    lost_on = (*turn.run.standby.lost_on, name)
    is_last = lost_on.count(name) >= standby_places.SPARE_LOSSES_MAX
    then = (
        f"{name} holds no other in this generation" if is_last else f"{name} gets another with the next one"
    )
    turn.note(NoteKind.STANDBY_LOST, f"{_named(turn.run.standby)} {why}; {then}")
    for task in turn.run.standby.tasks_on(name):
        if task.phase.may_live:
            turn.do(_stop(task))
            _set_task(turn, task, phase=TaskPhase.LOST)
    _set(turn, lost_on=lost_on)


def _fail(turn: Turn, why: str) -> None:
    """Count the loss of a standby, and end its remaining tasks."""
    standby = turn.run.standby
    _set(turn, failures=standby.failures + 1)
    is_last = standby.failures + 1 >= FAILURES_MAX
    then = "no other is started in this generation" if is_last else "training goes on, and another is started"
    turn.note(NoteKind.STANDBY_LOST, f"{_named(standby)} {why}; {then}")
    _end(turn, why)


def _forget(turn: Turn) -> None:
    """Schedule the next standby, with a longer wait each time that one was lost."""
    run, standby = turn.run, turn.run.standby
    turn.set(standby=Standby(start_at=standby.start_at, failures=standby.failures, lost_on=standby.lost_on))
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
    _set(turn, tasks=cast("Roster[tuple[TaskId, str], Task]", turn.run.standby.tasks).with_(changed))


def _shows(run: Run, now: Instant) -> dict[str, Any]:
    """Return the state of the next generation, which is started early: off, none, starting, ready or ending."""
    waiting = run.standby
    if waiting.tasks:
        state = "ending" if waiting.ended else "ready" if waiting.is_ready else "starting"
    else:
        state = "none" if is_wanted(run.plan) else "off"
    is_missing = state == "none" and run.phase is Phase.RUNNING
    shown = {
        "state": state,
        "generation": waiting.generation if waiting.tasks else None,
        "age_s": round(now - waiting.since_at, 1) if waiting.tasks else None,
        "memory_bytes": sum(task.progress.measured.get("rss_bytes") or 0 for task in waiting.tasks) or None,
        "reason": waiting.ended or (why_none(run) if is_missing else None),
        "tasks": [
            {"task": str(task.id), "host": task.host, "phase": task.phase.value, "pid": task.pid}
            for task in waiting.tasks
        ],
    }
    return {"standby": shown}


CONCERN = Concern(
    "standby",
    on={
        HostReported: _hear,
        OrderFailed: _order_failed,
        Stepped: _schedule,
        Begins: _claim_tasks,
        RestartsAlone: _claim_task,
    },
    watch=_watch,
    advance={Phase.STOPPING: _lose},
    due=_due,
    repeats=_repeats,
    shows=_shows,
)
