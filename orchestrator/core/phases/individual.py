"""Tasks that are restarted by themselves while the others train on: a worker of parameter servers, an evaluator.

Such a task keeps its port, by which its peers know it, and gets a generation of its own, higher than the gang's, so
that its old process cannot be mistaken for the new one. It has a budget of its own, and each of its waits has a bound:
to join, and to be gone once it is being ended. On a host that is drained or lost, or cannot serve the run, it is not
started again: it waits until that is over or the gang leaves the host, which happens at once where nothing would train
until then.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from orchestrator.core.actions import StartTask, StopTask
from orchestrator.core.causes import Cause
from orchestrator.core.diagnosis import cause
from orchestrator.core.ends import Exit
from orchestrator.core.gang import (
    addresses,
    individuals,
    is_served,
    measured,
    missed,
    release,
    waits_to_leave,
)
from orchestrator.core.hosts.host_state import ask_again
from orchestrator.core.hosts.slots import NO_TASKS, unfit
from orchestrator.core.moments import NothingTrains, RestartsAlone
from orchestrator.core.notes import NoteKind
from orchestrator.core.phases import restart
from orchestrator.core.phases.stopping import end_individually, stop_all
from orchestrator.core.state.host import Link
from orchestrator.core.state.instants import Deadline, Instant, is_due
from orchestrator.core.state.phase_states import Intent, Phase, Running, Stopping
from orchestrator.core.state.run import Problem, Run
from orchestrator.core.state.task import Task, TaskPhase
from orchestrator.core.turn import Concern, Turn
from orchestrator.core.words import duration


def _advance(turn: Turn) -> None:
    """Restart tasks that ended alone, start those that are due, release those that joined, end those that are late."""
    alone = individuals(turn.run)
    if not alone:
        return
    for task in alone:
        if task.phase.is_gone:
            _restart(turn, task)
        elif is_due(_overdue_at(task), turn.at):
            timing = turn.run.plan.timing
            if turn.run.host(task.host).link is not Link.CONNECTED:
                turn.set_task(task, deadline_at=turn.at + timing.unreachable_after_s)
            elif task.ending is None:
                where = f"pid {task.pid} is alive and still importing" if task.pid else "no process yet"
                late = (
                    f"{task.id} on {task.host} did not join within {duration(timing.start_after_s)} ({where})"
                )
                end_individually(turn, task, Cause.START, late)
            else:
                turn.set(first_cause=replace(task.ending, generation=turn.run.generation))
                lives = f"{task.id} on {task.host} is still running after SIGKILL"
                stop_all(turn, Intent.RESTART, f"{lives}; {task.ending.sentence}")
        if turn.run.phase is not Phase.RUNNING:
            return
    # Move the gang off a host without tasks at once where the other tasks cannot train on. TensorFlow's chief takes
    # no worker back until all are there.
    if away := missed(turn.run):
        turn.tell(NothingTrains(f"without {', '.join(str(task.id) for task in away)} nothing trains"))
    if turn.run.phase is not Phase.RUNNING:
        return
    _start_together(turn)
    for task in individuals(turn.run):
        if _may_start(turn.run, task) and is_due(task.start_at, turn.at):
            _start(turn, task)
        elif task.phase is TaskPhase.READY and task.port is not None and task.ending is None:
            # Release the task. From here on the position may move again, and the usual limit holds for a
            # standstill.
            turn.set_task(task, phase=TaskPhase.RELEASED, deadline_at=None)
            turn.do(release(turn.run, turn.run.task(task.id), addresses(turn.run)))
            if is_served(turn.run, task):
                turn.forgive_standstill()


def _may_start(run: Run, task: Task) -> bool:
    """Return whether a task waits for its time only, not for its host. On a lost host the old process may live."""
    if task.phase is not TaskPhase.WAITING or task.start_at is None:
        return False
    host = run.host(task.host)
    return host.link is Link.CONNECTED and host.facts is not None and host.state not in NO_TASKS


def _overdue_at(task: Task) -> Deadline | None:
    """Return when a task must have joined, or be gone; None if neither is waited for."""
    waits = task.phase is TaskPhase.STARTING or (task.ending is not None and task.phase.may_live)
    return task.deadline_at if waits else None


def _restart(turn: Turn, task: Task) -> None:
    run, ended = turn.run, task.exit or Exit(cause=Cause.HOST_LOST)
    if ended.cause is Cause.FINISHED and not is_served(run, task):
        return  # an evaluator that has finished
    blamed, sentence = ended.cause, cause.end_of(run, task, ended)
    if task.ending is not None:
        blamed, sentence = task.ending.cause, task.ending.sentence
    decided = restart.verdict(
        task.budget,
        run.plan.restart,
        blamed,
        verified_step=measured(run, run.verified_step),
        failure=None,  # it may wait for what other tasks make, such as a first checkpoint
        identity=f"{run.run_id}/{task.id}/{task.generation}",
    )
    if isinstance(decided, restart.GiveUp):
        intent = Intent.RESTART if blamed.row.wants_new_place else Intent.FAIL
        stop_all(turn, intent, f"{sentence}; given up: {decided.reason}")
        return
    fresh = _fresh(turn, task, decided)
    when = f"in {duration(decided.delay_s)} ({decided.reason})" if decided.delay_s else "at once"
    if fresh.phase is not TaskPhase.WAITING:
        when = "at once, by the task that has waited as a standby"
    done = f"restarted individually, {when}; the other tasks continue"
    if waits_to_leave(turn.run, fresh):
        host = run.host(task.host)
        state = host.state.value if host.state in NO_TASKS else "not ready"
        until = f"{task.host} may have tasks again or the gang moves"
        done = f"not restarted on {task.host}, which is {state}: it waits until {until}"
    first_cause = (
        cause.completed(run, task.ending) if task.ending is not None else cause.first_cause_of(run, task)
    )
    turn.note(
        NoteKind.RESTART_INDIVIDUALLY,
        f"{task.id} is {done}: {sentence}",
        task.id,
        **({"first_cause": cause.as_data(replace(first_cause, done=done))} if first_cause else {}),
    )


def _fresh(turn: Turn, task: Task, decided: restart.Restart) -> Task:
    """Begin the task's next generation, and return it: the standby's, or one that is started when its wait is over.

    It begins here, so that the record of the old one, which its host goes on reporting, is not taken for another end.
    """
    waiting: Task | None = turn.tell(RestartsAlone(task.id)) if decided.delay_s == 0.0 else None
    if waiting is not None:
        deadline_at = turn.at + turn.run.plan.timing.start_after_s
        fresh = replace(waiting, port=task.port, budget=decided.budget, deadline_at=deadline_at)
        turn.do(StartTask(host=fresh.host, task=fresh.id, generation=fresh.generation, port=fresh.port))
    else:
        fresh = Task(
            id=task.id,
            host=task.host,
            generation=turn.run.generation_last + 1,
            port=task.port,
            start_at=turn.at + decided.delay_s,
            budget=decided.budget,
        )
        turn.set(generation_last=fresh.generation)
    turn.run = turn.run.with_task(fresh)
    return fresh


def _start_together(turn: Turn) -> None:
    """Start all serving tasks that wait together: TensorFlow's chief takes none of them back until all are there."""
    serving = [t for t in individuals(turn.run) if is_served(turn.run, t) and not waits_to_leave(turn.run, t)]
    waiting = [t for t in serving if t.phase is TaskPhase.WAITING]
    first_at = min((t.start_at for t in waiting if t.start_at is not None), default=None)
    for task in waiting:
        if task.start_at is not None and first_at is not None and task.start_at > first_at:
            turn.set_task(task, start_at=first_at)
            turn.note(
                NoteKind.RESTART_TOGETHER, f"{task.id} starts with the others, which need it back", task.id
            )


def _start(turn: Turn, task: Task) -> None:
    """Start a task, unless its host has come back with other software than the others: then that is asked again."""
    why = unfit(turn.run, turn.run.host(task.host))
    if why is not None:
        if turn.before.host(task.host).problem != why:
            turn.note(NoteKind.HOST_REFUSED, f"{task.id} is not restarted on {task.host}: {why}", task.id)
        ask_again(turn, task.host, Problem(code="hosts-differ", message=why))
        return
    deadline_at = turn.at + turn.run.plan.timing.start_after_s
    task = turn.set_task(task, phase=TaskPhase.STARTING, start_at=None, deadline_at=deadline_at)
    turn.do(StartTask(host=task.host, task=task.id, generation=task.generation, port=task.port))


def _due(run: Run) -> Iterable[Deadline | None]:
    """Yield when tasks start, or must have joined or ended. One that waits for its host starts by an event instead."""
    if not isinstance(run.phase_state, Running):
        return
    for task in run.tasks:
        if task.start_at is not None and _may_start(run, task):
            yield task.start_at
        if task.deadline_at is not None:
            yield _overdue_at(task)


def _repeats(run: Run, name: str, _at: Instant) -> list[StopTask]:
    state = run.phase_state
    if isinstance(state, Stopping) and state.force_at is None:
        return []  # all are being ended, by another order
    ending = [task for task in run.tasks_on(name) if task.ending is not None and task.phase.may_live]
    return [StopTask(host=name, task=t.id, generation=t.generation, grace_s=0.0) for t in ending]


CONCERN = Concern(
    "tasks that are restarted alone", advance={Phase.RUNNING: _advance}, due=_due, repeats=_repeats
)
