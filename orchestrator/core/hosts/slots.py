"""Decides which hosts hold the tasks of the next generation. Pure functions of a run; no other module decides it.

A slot is a host of the plan with its tasks. Its assignee is that host or a replacement. The rules:
- A host that can go on keeps its slot. Tasks are not moved without need, so a host that comes back does not get its
  slot again.
- A host that is away keeps its slot, and is waited for, until it counts as lost. Then, as for one that is drained,
  refused, quarantined or stuck, the slot goes to its own host or to another that is ready, has the room and holds none.
- Where there is none, the slot is left out, if enough tasks remain by `replicas_min`; all such slots or none.
- Otherwise a quarantined host that is ready is used after all, and any other is waited for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from orchestrator.core.hosts import compatibility
from orchestrator.core.launching.placement import COMPUTING_TYPES, has_room
from orchestrator.core.state.host import Host, HostState, Link
from orchestrator.core.state.phase_states import Phase
from orchestrator.core.state.run import Run
from orchestrator.core.state.task import TaskPhase
from orchestrator.core.strategy import STRATEGIES
from orchestrator.core.words import counted

NO_TASKS = (HostState.LOST, HostState.DRAINED, HostState.STUCK, HostState.LEAVING)
"""States of hosts that are given no task whatever happens."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """Which host holds each slot in the next generation."""

    replacements: Mapping[str, str | None]
    """As `Run.replacements`."""
    waits_for: tuple[str, ...] = ()
    """Hosts without which it cannot begin."""
    against_advice: tuple[str, ...] = ()
    """Quarantined hosts that hold a slot, since nobody else can."""
    unfilled: tuple[str, ...] = ()
    """Slots that no host of the run can take: they are left out, or a host is waited for."""


def assignee(run: Run, slot: str) -> str | None:
    """Return the host that holds a slot in this generation; None if its tasks are left out."""
    return run.replacements.get(slot, slot)


def is_ready(run: Run, host: Host) -> bool:
    """Return whether tasks can be started on a host now. In PENDING it is enough that the host was prepared."""
    is_there = host.link is Link.CONNECTED and host.problem is None and not host.dir_missing
    return (is_there or run.phase is Phase.PENDING) and host.facts is not None


def next_assignment(run: Run) -> Assignment:
    """Apply the rules above to the state as it is."""
    slots = run.plan.hosts_used
    chosen: dict[str, str | None] = {}
    waits_for: list[str] = []
    vacant: list[str] = []
    for slot in slots:
        name = assignee(run, slot)
        host = run.host(name) if name is not None else None
        if host is None or host.state is not HostState.OPEN or is_refused(run, host):
            vacant.append(slot)
            continue
        chosen[slot] = host.name
        if not is_ready(run, host):
            waits_for.append(host.name)
    _fill(run, vacant, chosen)
    short = unfilled = [slot for slot in vacant if slot not in chosen]
    forced: list[str] = []
    if not _may_leave_out(run, unfilled):
        forced = _fill_against_advice(run, unfilled, chosen)
        unfilled = [slot for slot in unfilled if slot not in chosen]
    if _may_leave_out(run, unfilled):
        chosen |= dict.fromkeys(unfilled)
    else:
        waits_for += [assignee(run, slot) or slot for slot in unfilled]
    replacements = {slot: name for slot, name in chosen.items() if name != slot}
    return Assignment(replacements, tuple(waits_for), tuple(forced), tuple(short))


def chosen_hosts(run: Run, assignment: Assignment) -> list[Host]:
    """Return the hosts that would hold a slot, in the order of the plan."""
    names = {assignment.replacements.get(slot, slot) for slot in run.plan.hosts_used}
    return [host for host in run.hosts if host.name in names]


def is_refused(run: Run, host: Host) -> bool:
    """Return whether a host cannot serve the run until a person acts. It is not known while the host is asked again."""
    return host.facts is None and host.retry_at is not None and run.has_begun


def turns_away(host: Host) -> bool:
    """Return whether a host has said why it cannot serve the run. It may be asked again at this moment."""
    return host.facts is None and host.problem is not None


def _fill(run: Run, vacant: Iterable[str], chosen: dict[str, str | None]) -> None:
    """Give vacant slots to free hosts: first those that cannot be left out; each where the least is left over."""
    for slot in sorted(vacant, key=lambda slot: _may_leave_out(run, [slot])):
        free = [host.name for host in run.hosts if host.name not in chosen.values() and is_free(run, host)]
        fitting = [name for name in free if has_room(run.plan, slot, name)]
        gpus = {name: len(run.plan.host(name).gpus) for name in fitting}
        waits = {name: _has_standby(run, slot, name) for name in fitting}
        host_name = min(fitting, key=lambda name: (name != slot, gpus[name], not waits[name]), default=None)
        if host_name is not None:
            chosen[slot] = host_name


def is_free(run: Run, host: Host) -> bool:
    """Return whether a host that holds no slot could be given one."""
    is_open = host.state is HostState.OPEN and is_ready(run, host)
    return is_open and unfit(run, host) is None and is_reserved(run, host.name)


def is_reserved(run: Run, name: str) -> bool:
    """Return whether a host is the run's own to use: it has a slot, or is a spare. Others are the pool's."""
    return run.plan.host(name).spare or any(task.host == name for task in run.plan.tasks)


def _has_standby(run: Run, slot: str, name: str) -> bool:
    """Return whether the tasks of a slot wait at their gates on a host."""
    if not run.standby.tasks or run.standby.ended:
        return False
    held = [run.standby.find(task.id, name) for task in run.tasks_on(assignee(run, slot) or "")]
    return bool(held) and all(task is not None and task.phase.may_live for task in held)


def unfit(run: Run, host: Host) -> str | None:
    """Return why a host cannot join the assignees: other software, other code, another checkpoint directory."""
    others = [other for other in run.assignees if other.facts is not None and other is not host][:1]
    if host.facts is None:
        return None
    together = [*others, host]
    problem = compatibility.differences(together) or compatibility.unshared(run.plan.checkpoint, together)
    return problem.message if problem is not None else None


def _fill_against_advice(run: Run, unfilled: Iterable[str], chosen: dict[str, str | None]) -> list[str]:
    forced = []
    for slot in unfilled:
        host = run.host(assignee(run, slot) or slot)
        if host.state is HostState.QUARANTINED and is_ready(run, host) and host.name not in chosen.values():
            chosen[slot] = host.name
            forced.append(host.name)
    return forced


def _may_leave_out(run: Run, slots: Sequence[str]) -> bool:
    """Return whether the spec allows the run to go on without the tasks of these slots."""
    if not slots:
        return True
    left = [task.id.type for task in run.plan.tasks if task.host not in slots]
    out = {task.id.type for task in run.plan.tasks if task.host in slots}
    return all(left.count(type_) >= run.plan.replicas_min.get(type_, len(run.plan.tasks)) for type_ in out)


def is_better(run: Run, assignment: Assignment) -> bool:
    """Return whether an assignment is worth a restart: more tasks train, or a drained or leaving host is freed."""
    drained = {host.name for host in run.hosts if host.state in (HostState.DRAINED, HostState.LEAVING)}
    now = {slot: assignee(run, slot) for slot in run.plan.hosts_used}
    then = {slot: assignment.replacements.get(slot, slot) for slot in now}
    if drained.intersection(filter(None, now.values())):
        return drained.isdisjoint(filter(None, then.values()))
    return _trains(run, then) > _trains(run, now)


def _trains(run: Run, assignees: Mapping[str, str | None]) -> int:
    idle = {host.name for host in run.hosts if host.state in NO_TASKS and not _goes_on(run, host)}
    waiting = {task.host for task in run.tasks if task.phase is TaskPhase.WAITING}
    idle |= {name for name in waiting if turns_away(run.host(name))}
    return sum(assignees[task.host] not in idle | {None} for task in run.plan.tasks)


def _goes_on(run: Run, host: Host) -> bool:
    """Return whether the tasks on a host train on though it gets no new ones: it leaves, or is stuck by another run."""
    closed = host.state in (HostState.STUCK, HostState.LEAVING)
    return closed and any(task.host == host.name and task.phase.may_live for task in run.tasks)


def waits_for_checkpoint(run: Run) -> bool:
    """Return whether the gang moves or ends once a checkpoint is verified; not where no other host can take tasks."""
    planned = run.planned_end
    if planned is not None and planned.wanted_at is None:
        return True
    states = {host.state for host in run.assignees}
    if HostState.LEAVING in states:
        return True
    if HostState.DRAINED not in states:
        return False
    assignment = next_assignment(run)
    return not assignment.waits_for and is_better(run, assignment)


def why_not_drained(run: Run, name: str) -> str | None:
    """Return why the run cannot do without a host; None if it can."""
    waits_for = next_assignment(run.with_host(replace(run.host(name), state=HostState.DRAINED))).waits_for
    drained = {host.name for host in run.assignees if host.state is HostState.DRAINED}
    # The room may be the one that the tasks of a host move to which was drained before
    is_taken = drained & (set(waits_for) - set(next_assignment(run).waits_for))
    if name not in waits_for and not (is_taken and run.tasks_on(name)):
        return None
    held = ", ".join(str(task.id) for task in run.tasks if task.host == name)
    fewest = ", ".join(counted(n, type_) for type_, n in run.plan.replicas_min.items())
    allowed = f"`replicas_min` ({fewest})" if fewest else "the spec, which has no `replicas_min`,"
    return (
        f"{name} cannot be drained: no other host that is ready has room for {held or 'its tasks'}, and "
        f"{allowed} does not allow to go on without"
    )


def _means(run: Run, share: str) -> str:
    """Return what it means for the training that only this share of the tasks is left."""
    options = run.plan.options
    if options.on_shrink == "hold_batch":
        held = "the global batch is held"
        return f"{held}, in larger shares" if options.transparent else f"the script is told that {held}"
    if options.on_shrink == "scale_lr":
        scaled = f"the global batch and the learning rate are {share} of what they were"
        return scaled if options.transparent else f"the script is told that {scaled}"
    if options.transparent and options.batch != "per_replica":
        return "the global batch stays, in larger shares"
    return STRATEGIES[run.plan.strategy].when_fewer.format(share=share)


def fewer(run: Run) -> str:
    """Return such as `3 of 4 workers: the global batch is 3/4 of what it was`; empty if no task is left out."""
    wanted, have = run.plan.tasks, run.placed.tasks
    types = sorted({task.id.type for task in wanted if run.replacements.get(task.host, task.host) is None})
    if not types:
        return ""
    counts = [
        f"{sum(t.id.type == type_ for t in have)} of {sum(t.id.type == type_ for t in wanted)} {type_}s"
        for type_ in types
    ]
    computing = [sum(task.id.type in COMPUTING_TYPES for task in tasks) for tasks in (have, wanted)]
    means = _means(run, "/".join(map(str, computing)))
    return f"{', '.join(counts)}: {means}"
