"""Which tasks are restarted together, by the table of strategies."""

from __future__ import annotations

from orchestrator.core.state.run import Run
from orchestrator.core.state.task import Task
from orchestrator.core.strategy import STRATEGIES


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
