"""Which slots of a run lack a host, and which host of the pool may stand in for one. Pure functions.

What a run is lent counts as a spare of it, with no more GPUs and slots than those tasks need. Who is lent which host is
decided for all runs at once, by `queue.pool_replacements`: it knows what they hold.
"""

from __future__ import annotations

from dataclasses import replace

from orchestrator.core.hosts import slots
from orchestrator.core.hosts.host_state import is_cut_off
from orchestrator.core.hosts.slots import is_refused
from orchestrator.core.launching.placement import has_room, place, used_gpus
from orchestrator.core.plan import HostPlan
from orchestrator.core.pool import Held, Known
from orchestrator.core.state.host import Host, HostState, Link
from orchestrator.core.state.instants import Instant
from orchestrator.core.state.phase_states import Intent, Phase
from orchestrator.core.state.run import Run

_LACKS_IN = (Phase.RENDEZVOUS, Phase.RUNNING, Phase.STOPPING, Phase.BACKOFF)
_GOES_ON = (None, Intent.RESTART, Intent.RESCHEDULE)


def is_lent(run: Run, name: str) -> bool:
    """Return whether a host is the run's for as long as it lacks one, and has no slot yet."""
    return run.plan.host(name).spare and not run.submitted.host(name).spare


def lacking(run: Run, at: Instant) -> list[str]:
    """Return the slots that no host of the run can take, and for which none is being prepared."""
    if not run.submitted.needs or run.phase not in _LACKS_IN or run.intent not in _GOES_ON:
        return []
    is_well = all(host.state is HostState.OPEN and host.link is Link.CONNECTED for host in run.assignees)
    if is_well and None not in run.replacements.values():
        return []
    assignment = slots.next_assignment(run)
    held = {slot: assignment.replacements.get(slot, slot) for slot in run.plan.hosts_used}
    short = [
        slot
        for slot, name in held.items()
        if name is None
        or slot in assignment.unfilled
        or name in assignment.against_advice
        or _is_silent(run, run.host(name), at)
    ]
    for host in run.hosts:
        if host.name not in held.values() and slots.is_reserved(run, host.name) and _may_come(run, host):
            for slot in [slot for slot in short if has_room(run.plan, slot, host.name)][:1]:
                short.remove(slot)
    return short


def _may_come(run: Run, host: Host) -> bool:
    is_there = host.state is HostState.OPEN and host.link is not Link.UNREACHABLE
    return is_there and not is_refused(run, host) and slots.unfit(run, host) is None


def _is_silent(run: Run, host: Host, at: Instant) -> bool:
    """Return whether a host counts as silent only since no other of the run is heard: one that is lent tells."""
    heard_at = host.heard_at if host.heard_at is not None else host.since_at
    is_over = at - heard_at >= run.plan.timing.lost_after_s
    return host.link is Link.UNREACHABLE and is_over and is_cut_off(run)


def pool_replacement(run: Run, slot: str, held: Held, known: Known, now: Instant) -> HostPlan | None:
    """Return the host of the pool that takes the tasks of a slot and has the fewest GPUs left over; None if none can.

    Of its GPUs and slots it has those that these tasks would get.
    """
    plan = run.submitted
    tasks = sorted((task for task in run.plan.tasks if task.host == slot), key=lambda task: task.id)
    of_type = {task.id.type: [each for each in tasks if each.id.type == task.id.type] for task in tasks}
    asks = [
        replace(ask, replicas=len(here), gpus=len(here[0].gpus), together=None)
        for ask in plan.needs
        if (here := of_type.get(ask.type))
    ]
    occupied = held.occupied(plan, known, now)
    mine = {host.name: host for host in run.hosts}
    best: tuple[int, HostPlan] | None = None
    for host in plan.hosts:
        if slots.is_reserved(run, host.name) or (host.name in mine and not _may_come(run, mine[host.name])):
            continue
        there, _ = place([host], asks, equal_gpus=False, occupied=occupied)
        if not there:
            continue
        others = occupied.get(host.name)
        free = len([gpu for gpu in host.gpus if others is None or gpu not in others.gpus])
        if best is not None and free >= best[0]:
            continue
        pairs = list(zip(tasks, sorted(there, key=lambda task: task.id), strict=True))
        gpus = {own: gpu for task, put in pairs for own, gpu in zip(task.gpus, put.gpus, strict=True)}
        numbers = sorted((task.slot, put.host_slot) for task, put in pairs if put.host_slot is not None)
        lent = replace(
            host,
            spare=True,
            gpus=tuple(gpus[own] for own in used_gpus(run.plan, slot)),
            slots_lent=tuple(number for _, number in numbers),
        )
        best = free, lent
    return best[1] if best is not None else None
