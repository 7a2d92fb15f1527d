"""Whether a state that was read is one that can be worked with: everything that it names is there.

A journal may have been damaged, or written by another program. A run whose parts do not fit together must not be taken
up, since looking at it would fail wherever it is looked at.
"""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.core.deadlines import next_deadline
from orchestrator.core.phases.stopping import unproven
from orchestrator.core.plan import TASK_TYPES
from orchestrator.core.state.instants import rebased
from orchestrator.core.state.phase_states import Backoff
from orchestrator.core.state.run import Run
from orchestrator.reporting import describe


def why_not_whole(run: Run) -> str | None:
    """Return what is wrong with a run that was read; None if nothing is."""
    missing = next(_missing(run), None)
    if missing is not None:
        return missing
    try:
        moved = rebased(run, 0.0)
        next_deadline(moved)
        unproven(moved)
        describe.reason(moved, now=moved.since_at)
    except Exception as e:  # whatever it is, the run cannot be worked with
        return f"it cannot be worked with: {type(e).__name__}: {e}"
    return None


def _missing(run: Run) -> Iterator[str]:
    """Yield a sentence for each thing that is named and not there."""
    planned = {host.name for host in run.plan.hosts}
    known = {host.name for host in run.hosts}
    if not run.tasks or not run.plan.tasks:
        yield "it has no tasks"
    for what, names in (("run", known), ("plan", {task.host for task in run.plan.tasks})):
        for name in sorted(names - planned):
            yield f"the {what} names the host {name!r}, which the plan does not have"
    for name in sorted({task.host for task in run.plan.tasks} - known):
        yield f"the plan gives tasks to the host {name!r}, which the run does not have"
    ids = {task.id for task in run.plan.tasks}
    for type_ in sorted({task.id.type for task in run.plan.tasks} - set(TASK_TYPES)):
        yield f"the plan has tasks of the type {type_!r}, which there is not"
    for task in run.tasks:
        if task.id not in ids:
            yield f"the plan does not have the task {task.id}"
        if task.host not in known:
            yield f"{task.id} is on the host {task.host!r}, which the run does not have"
    for slot, assignee in run.replacements.items():
        if slot not in planned or (assignee is not None and assignee not in known):
            yield f"the tasks of {slot!r} are given to the host {assignee!r}, and one of them is not there"
    if isinstance(run.phase_state, Backoff) and run.phase_state.full_host not in ("", *known):
        yield f"it waits for the host {run.phase_state.full_host!r}, which the run does not have"
