"""Where a standby's tasks are held: each on its own host, and also on spares, which may have to take it over.

A process is started as one task, and cannot become another. So a spare holds one process for each task that it may be
given, as far as its memory and ports suffice. Where there are more slots than a spare has room for, each spare begins
with different ones. Only the tasks of one slot are ever released on a spare; the others are then ended.
"""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.core.gang import highest_reported
from orchestrator.core.hosts import pool_hosts, slots
from orchestrator.core.hosts.host_state import is_cut_off
from orchestrator.core.hosts.silence import last_word_at
from orchestrator.core.hosts.slots import Assignment
from orchestrator.core.launching import environment as launch
from orchestrator.core.launching.placement import assigned, has_room
from orchestrator.core.plan import TaskId
from orchestrator.core.state.host import Host, HostState, Link
from orchestrator.core.state.instants import Deadline
from orchestrator.core.state.run import Run
from orchestrator.core.state.task import Task
from orchestrator.core.words import size

TASK_BYTES = 400 << 20
"""What a process takes that has imported TensorFlow and Keras, and nothing else. No GPU memory."""

MEMORY_SHARE = 4
"""`auto`: on each host a standby may take this fraction, 1/4, of the memory that is free."""

SPARE_TASKS_MAX = 16
"""How many tasks a spare holds at most: each import takes seconds of a core."""

SPARE_LOSSES_MAX = 2
"""How many times a spare may lose its standby in one generation; then it is given no other."""


def why_no_memory(run: Run) -> str | None:
    """Return why the hosts that train have no memory left for a standby; None if they have."""
    for host in run.assignees:
        wanted = TASK_BYTES * len(run.tasks_on(host.name))
        available = host.measured.get("memory_available_bytes")
        if available is None or available < MEMORY_SHARE * wanted:
            free = "unknown" if available is None else size(available)
            return f"it would take {size(wanted)} of {host.name}, where {free} is free"
    return None


def on_spares(run: Run, *, without: frozenset[str] = frozenset()) -> Iterator[tuple[TaskId, str]]:
    """Yield the tasks that spares can hold now, each with its spare; none of the spares in `without`."""
    if None in run.replacements.values():
        return  # the next generation would give a free spare the tasks that are left out
    holding = {task.host for task in run.tasks}
    spares = [
        host
        for host in run.hosts
        if host.name not in holding
        and slots.is_free(run, host)
        and not pool_hosts.is_lent(run, host.name)  # it stays only while it is needed
        and run.standby.lost_on.count(host.name) < SPARE_LOSSES_MAX
    ]
    taken = run.plan.hosts_used
    for number, spare in enumerate(spares):
        if spare.name in without:
            continue
        first = number * len(taken) // len(spares)
        # How many tasks a spare has room for
        most = SPARE_TASKS_MAX
        if run.plan.restart.standby == "auto":
            available = spare.measured.get("memory_available_bytes") or 0
            most = min(most, int(available // (MEMORY_SHARE * TASK_BYTES)))
        room = min(most, launch.ports_in_block(run.plan, spare.name, len(run.tasks)))
        for slot in (*taken[first:], *taken[:first]):
            tasks = run.tasks_on(slots.assignee(run, slot) or "")
            if has_room(run.plan, slot, spare.name) and len(tasks) <= room:
                room -= len(tasks)
                yield from ((task.id, spare.name) for task in tasks)


def is_home(run: Run, task: Task) -> bool:
    """Return whether a task of the standby is on the host of the same task that trains."""
    trains = run.find_task(task.id)
    return trains is not None and trains.host == task.host


def living(run: Run) -> list[Task]:
    """Return the standby's tasks that have, or may have, a process."""
    return [task for task in run.standby.tasks if task.phase.may_live]


def is_whole(run: Run) -> bool:
    """Return whether the standby has all its tasks, as a gang needs them: none was taken out to be restarted alone."""
    return all(run.standby.find(task.id, task.host) is not None for task in run.tasks)


def given_up_at(run: Run) -> dict[str, Deadline]:
    """Return, by silent host, when the run stops waiting for the standby's tasks there to end.

    They are ended when the host reports again. Silence alone does not make a spare lost, since none of its tasks train.
    """
    if not run.standby.ended or is_cut_off(run):
        return {}
    hosts = [run.host(name) for name in dict.fromkeys(task.host for task in living(run))]
    lost_after_s = run.plan.timing.lost_after_s
    return {h.name: last_word_at(h) + lost_after_s for h in hosts if h.link is Link.UNREACHABLE}


def why_incomplete(run: Run) -> str | None:
    """Return what a new standby would have and this one lacks; None if it lacks nothing."""
    taken = [str(task.id) for task in run.tasks if run.standby.find(task.id, task.host) is None]
    if taken:
        return f"{', '.join(taken)} was restarted from it"
    if len(run.hosts) == len(run.plan.hosts_used):
        return None
    holding = frozenset(task.host for task in living(run))
    spare = next(on_spares(run, without=holding), None)
    return f"{spare[1]} can hold it too" if spare is not None else None


def unfit(host: Host) -> str | None:
    """Return why the standby's tasks on a host cannot be released; None if they can."""
    if host.state is not HostState.OPEN:
        return f"{host.name} is {host.state.value}"
    return f"{host.name} is prepared anew" if host.facts is None else None


def is_covered(run: Run, task: Task) -> bool:
    """Return whether a spare also holds the task."""
    return any(
        other.id == task.id
        and other.host != task.host
        and other.phase.may_live
        and unfit(run.host(other.host)) is None
        for other in run.standby.tasks
    )


def fitting(run: Run, assignment: Assignment) -> list[Task]:
    """Return the standby's tasks for this assignment; none unless every task waits where it will be."""
    if not is_whole(run) or highest_reported(run) >= run.standby.generation:
        return []
    if None in assignment.replacements.values() and assignment.replacements != run.replacements:
        return []  # they were started with another number of tasks
    placed = assigned(run.plan, assignment.replacements)
    standby_tasks = [run.standby.find(task.id, task.host) for task in placed]
    waiting = [task for task in standby_tasks if task is not None and task.phase.may_live]
    return waiting if len(waiting) == len(placed) else []
