"""Tasks that are restarted by themselves while the others train on: a worker of parameter servers, an evaluator.

Such a task keeps its port, by which its peers know it, and gets a generation of its own, higher than the gang's, so
that what is left of its old process cannot be taken for the new one. It has a budget of its own.
"""

from __future__ import annotations

from collections.abc import Iterable

from orchestrator.core import cause, restart
from orchestrator.core.actions import StartTask
from orchestrator.core.fate import is_alone, is_served
from orchestrator.core.model import Cause, Exit, Intent, Link, Run, Task, TaskPhase
from orchestrator.core.starting import release
from orchestrator.core.stopping import stop_all
from orchestrator.core.turn import Turn, is_due


def advance_alone(turn: Turn) -> None:
    """Restart what ended alone, start what is due, release what has joined."""
    for task in _alone(turn.run):
        if task.phase.is_gone:
            _restart(turn, task)
    for task in _alone(turn.run):
        if may_start_alone(turn.run, task) and is_due(task.start_at, turn.at):
            _start(turn, task)
        elif task.phase is TaskPhase.READY and task.port is not None:
            turn.set_task(task, phase=TaskPhase.RELEASED)
            turn.do(release(turn.run, turn.run.task(task.id)))


def _alone(run: Run) -> Iterable[Task]:
    return [task for task in run.tasks if is_alone(run, task)]


def may_start_alone(run: Run, task: Task) -> bool:
    """Whether it waits for its time only, and not for its host."""
    host = run.host(task.host)
    ready = host.link is Link.CONNECTED and host.facts is not None
    return task.phase is TaskPhase.WAITING and task.start_at is not None and ready


def _restart(turn: Turn, task: Task) -> None:
    run, ended = turn.run, task.exit or Exit(cause=Cause.HOST_LOST)
    if ended.cause is Cause.FINISHED and not is_served(run, task):
        return  # an evaluator that has seen enough
    decided = restart.verdict(
        task.budget,
        run.plan.restart,
        ended.cause,
        verified_step=run.checkpoint.global_step if run.checkpoint else None,
        common=None,
        identity=f"{run.run_id}/{task.id}/{task.generation}",
    )
    sentence = f"{task.id} on {task.host} {cause.how(ended)}"
    if isinstance(decided, restart.GiveUp):
        stop_all(turn, Intent.FAIL, f"{sentence}; given up: {decided.reason}")
        return
    # The first is at once, since nothing is lost by it; the new generation begins here, so that the record of the
    # old one, which its host goes on reporting, is not taken for another end.
    delay_s = decided.delay_s if task.budget.in_a_row else 0.0
    generation = run.generation_last + 1
    fresh = Task(
        id=task.id,
        host=task.host,
        generation=generation,
        port=task.port,
        start_at=turn.at + delay_s,
        budget=decided.budget,
    )
    turn.run = turn.run.with_task(fresh)
    turn.set(generation_last=generation)
    when = f"in {delay_s:.1f} s ({decided.reason})" if delay_s else "at once"
    turn.note("restart-alone", f"{task.id} is restarted alone, {when}; the others go on: {sentence}", task.id)


def _start(turn: Turn, task: Task) -> None:
    task = turn.set_task(task, phase=TaskPhase.STARTING, start_at=None)
    turn.do(StartTask(host=task.host, task=task.id, generation=task.generation, port=task.port))
