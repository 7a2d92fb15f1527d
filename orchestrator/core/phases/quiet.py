"""Quiet reports, which only change numbers. Nothing waits for these, so nothing is decided, checked or kept for them.

That is nearly every heartbeat, of nearly every host. What is done for one must therefore not grow with the number of
hosts. Such a report can only postpone deadlines, since a host or a task was heard. A deadline that has passed meanwhile
is handled at the next `Ticked`.

A task's first step is a number too: whether there was one is asked when a task ends, and not waited for. The journal
has it with the next entry. The chief's is not quiet, as no report of its host is.
"""

from __future__ import annotations

from orchestrator.core.events import Event, HostReported
from orchestrator.core.hosts import checkpoint_dir
from orchestrator.core.phases import standby
from orchestrator.core.phases.stall import may_be_frozen
from orchestrator.core.state.host import Host
from orchestrator.core.state.phase_states import Phase
from orchestrator.core.state.run import Run
from orchestrator.core.state.task import Task

_WAITS_FOR_NO_NUMBER = (Phase.PENDING, Phase.RENDEZVOUS, Phase.RUNNING)
"""Phases in which no number of a report is waited for. In others, the run may wait for room on a disk, or for the end
of a task that a report leaves out."""


def is_quiet(before: Run, after: Run, event: Event) -> bool:
    """Return whether `event` is a report and has changed numbers only, from `before` to `after`.

    The chief's position is what a stall is judged by, so the report of its host is never quiet.
    """
    if not isinstance(event, HostReported) or before.phase not in _WAITS_FOR_NO_NUMBER:
        return False
    tasks = after.tasks_on(event.host)
    return (
        before.phase is after.phase
        and all(task.id != after.chief for task in tasks)
        and _of_host(before.host(event.host)) == _of_host(after.host(event.host))
        and [_of_task(task) for task in before.tasks_on(event.host)] == [_of_task(task) for task in tasks]
        and standby.believed(before, event.host) == standby.believed(after, event.host)
        and before.standby.ended == after.standby.ended
        and not any(may_be_frozen(after, task) for task in tasks)
    )


def _of_host(host: Host) -> tuple[object, ...]:
    """Return the values of a host that decisions read and that a report may change."""
    hangs = host.dir_silent_s >= checkpoint_dir.SILENT_S
    told = (host.unkillable, host.gpu_faults, host.leave_at, host.leave_why)
    return host.link, host.problem, host.back_at, host.state, host.dir_low_at, hangs, told


def _of_task(task: Task) -> tuple[object, ...]:
    return (
        task.phase,
        task.pid,
        task.port,
        task.exit,
        task.said,
        task.heard_at is None,
    )
