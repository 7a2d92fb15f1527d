"""Hosts of the pool that stand in for a host that the run has lost, or that is drained.

A host that is lent counts as a spare while the run lacks one. Once it has the tasks, the place is its own, and what the
other host held is the pool's again as soon as nothing of the run lives there. A host that is not needed after all, or
that refuses, is given back. The run goes on watching it, since something of the run may be there.
"""

from __future__ import annotations

from dataclasses import replace

from orchestrator.core.actions import PrepareHost
from orchestrator.core.events import HostLent
from orchestrator.core.hosts import slots
from orchestrator.core.hosts.pool_hosts import is_lent
from orchestrator.core.launching.placement import assigned
from orchestrator.core.notes import NoteKind
from orchestrator.core.plan import HostPlan
from orchestrator.core.state.host import Host, HostState, Link
from orchestrator.core.state.run import Run
from orchestrator.core.turn import Concern, Turn


def _take(turn: Turn, event: HostLent) -> None:
    """Add the host as a spare, and have it prepared."""
    run, name = turn.run, event.lent.name
    if slots.is_reserved(run, name):
        return
    turn.set(asked=run.submitted)
    _set_plan_of(turn, event.lent)
    if any(host.name == name for host in run.hosts):
        turn.set_host(run.host(name), facts=None)
    else:
        turn.set(hosts=(*run.hosts, Host(name=name, since_at=turn.at, untouched=True)))
    turn.note(NoteKind.PLACED, f"{name} is free, and may take the tasks of {event.slot}")
    turn.do(PrepareHost(host=name))


def _settle(turn: Turn) -> None:
    """Let a host that has taken over have the place for good, and give back one that is not needed."""
    if turn.run.asked is None:
        return
    for name in [host.name for host in turn.run.hosts if is_lent(turn.run, host.name)]:
        slot = next((slot for slot, held in turn.run.replacements.items() if held == name), None)
        if slot is not None:
            _have_for_good(turn, slot, name)
        elif not _is_needed(turn.run, turn.run.host(name)):
            _set_plan_of(turn, turn.run.submitted.host(name))
            turn.set_host(turn.run.host(name), retry_at=None)
            turn.note(NoteKind.PLACED, f"{name} is the pool's again: {turn.run.run_id} does not need it")


def _have_for_good(turn: Turn, slot: str, name: str) -> None:
    run = turn.run
    may_live = run.host(slot).state in (HostState.LOST, HostState.STUCK) or run.tasks_on(slot)
    if may_live or any(task.host == slot for task in run.standby.tasks):
        return
    left = {other: held for other, held in run.replacements.items() if other != slot}
    plan = replace(run.plan, tasks=assigned(run.plan, {slot: name}))
    turn.set(plan=plan, replacements=left)
    _set_plan_of(turn, replace(run.plan.host(name), spare=False))
    _set_plan_of(turn, run.submitted.host(slot))
    turn.note(NoteKind.PLACED, f"{name} has the place of {slot} for good, which is the pool's again")


def _is_needed(run: Run, host: Host) -> bool:
    if slots.is_refused(run, host) or slots.unfit(run, host) is not None:
        return False
    assignment = slots.next_assignment(run)
    is_short = bool(assignment.unfilled) or any(
        other.state is not HostState.OPEN or other.link is Link.UNREACHABLE for other in run.assignees
    )
    return is_short or host.name in assignment.replacements.values()


def _set_plan_of(turn: Turn, host: HostPlan) -> None:
    hosts = tuple(host if each.name == host.name else each for each in turn.run.plan.hosts)
    turn.set(plan=replace(turn.run.plan, hosts=hosts))


CONCERN = Concern("hosts of the pool that stand in", on={HostLent: _take}, watch=_settle)
