"""The gang of a run: who is restarted together, the number of its next generation, and how far it can have come."""

from __future__ import annotations

from orchestrator.core.causes import Blame
from orchestrator.core.launching.environment import GENERATION_REPORTED_MAX, have_ports_apart
from orchestrator.core.state.run import Run
from orchestrator.core.state.task import Task, TaskPhase
from orchestrator.core.strategy import STRATEGIES

UNHEARD_S = 600.0
"""For how long it may have trained on since it was heard, at its pace: reports and disks may be slow."""

UNHEARD_STEPS = 1000


def is_individual(run: Run, task: Task) -> bool:
    """Return whether the others train on when this task ends."""
    return task.id.type in STRATEGIES[run.plan.strategy].alone


def is_served(run: Run, task: Task) -> bool:
    """Return whether the task runs a server, which never ends by itself."""
    return task.id.type in STRATEGIES[run.plan.strategy].served


def gang(run: Run) -> list[Task]:
    """Return the tasks that are restarted together."""
    alone = STRATEGIES[run.plan.strategy].alone
    return [task for task in run.tasks if task.id.type not in alone] if alone else list(run.tasks)


def individuals(run: Run) -> list[Task]:
    """Return the tasks that are restarted by themselves."""
    alone = STRATEGIES[run.plan.strategy].alone
    return [task for task in run.tasks if task.id.type in alone] if alone else []


def highest_reported(run: Run) -> int:
    """Return the highest credible generation whose directory a host reports; 0 if there is none."""
    generations = (host.facts.highest_generation for host in run.hosts if host.facts)
    return max((generation for generation in generations if generation <= GENERATION_REPORTED_MAX), default=0)


def next_generation(run: Run) -> int:
    """Return a number above all that were given out, and all of which any host has a directory.

    Spares count too, and so do hosts that were prepared late: if nothing is shared, the next chief may find old
    directories of another run on such a host. Numbers whose ports are those of the present generation are skipped, so
    that a stale process cannot join the new gang; the number between the two may have gone to a standby that was never
    released.
    """
    generation = max(run.generation_last, highest_reported(run)) + 1
    while run.generation and not have_ports_apart(run.plan, run.generation, generation):
        generation += 1
    return generation


def step_max(run: Run) -> int | None:
    """Return the highest step that can have been reached by now; None where nobody has told how far it came.

    A checkpoint of ours that claims more is not believed.
    """
    told = [
        task
        for task in gang(run)
        if task.phase in (TaskPhase.RUNNING, TaskPhase.EXITED)
        # With its host, or without its shim, it may have trained for hours since it was heard
        and not (task.exit is not None and task.exit.cause.row.blame is Blame.HOST)
    ]
    saves = [task.progress.saving for task in told if task.progress.saving is not None]
    saved = [(each.saved_step or 0) + 2 * each.every_steps for each in saves]
    if not told or run.best_step is None:
        return None
    pace = max((task.progress.steps_per_s or 0.0 for task in told), default=0.0)
    known = max(run.best_step, run.verified_step or 0, *saved)
    return known + max(UNHEARD_STEPS, round(UNHEARD_S * pace))
