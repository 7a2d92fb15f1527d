"""Reads runs from the journal, with their plan, hosts and tasks, without asking a host or a coordinator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.client.choice import no_such_run
from orchestrator.client.environment import Environment
from orchestrator.core.errors import UsageError
from orchestrator.head.node.paths import Paths

if TYPE_CHECKING:
    from orchestrator.core.plan import HostPlan, TaskId
    from orchestrator.core.state.run import Run


def known_runs(environment: Environment) -> list[Run]:
    """Return all runs in the journal, oldest first; older ended ones have left it."""
    from orchestrator.head.journal import reading

    return [kept.run for kept in reading.read_runs(environment.paths.journal).kept]


def known_run(paths: Paths, name: str) -> Run:
    """Return the run with this id, or the newest with this name. Raises UsageError if there is none."""
    from orchestrator.head.journal import reading

    runs = [kept.run for kept in reading.read_runs(paths.journal).kept]
    matching = [run for run in runs if name in (run.run_id, run.plan.name)]
    if matching:
        return matching[-1]
    old = reading.archived(paths, name)
    if old is None:
        raise no_such_run(name, [run.plan.name for run in runs])
    return old.run


def host_of(run: Run, name: str) -> HostPlan:
    """Return a host of the run. Raises UsageError if it has none with that name."""
    try:
        return run.plan.host(name)
    except KeyError:
        names = ", ".join(host.name for host in run.plan.hosts)
        raise UsageError(f"{run.run_id} has no host {name!r}", hint=f"its hosts: {names}") from None


def task_of(run: Run, text: str) -> tuple[TaskId, HostPlan]:
    """Return a task of the run, such as worker:3, and its host. Raises UsageError if there is none."""
    from orchestrator.core.plan import TaskId

    try:
        id_ = TaskId.parse(text)
    except ValueError as e:
        raise UsageError(str(e)) from e
    task = run.find_task(id_)
    if task is None:
        names = ", ".join(str(task.id) for task in run.tasks)
        raise UsageError(f"{run.run_id} has no task {text}", hint=f"its tasks: {names}")
    return id_, run.plan.host(task.host)
