"""Events about hosts, and orders to them: silence, reconnection, preparation, and the proof that nothing is left."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.core import conflicts
from orchestrator.core.actions import (
    Action,
    CloseHost,
    PrepareHost,
    SeedCheckpoint,
    StartTask,
    StopTask,
    SweepHost,
    VerifyCheckpoint,
)
from orchestrator.core.errors import AllocationGone
from orchestrator.core.events import HostPrepared, HostRefused, HostSwept, HostUp
from orchestrator.core.hosts import compatibility, host_state
from orchestrator.core.hosts.host_state import is_cut_off
from orchestrator.core.notes import NoteKind
from orchestrator.core.phases import final_verification, nonfinite, standby
from orchestrator.core.phases.queueing import wait_again
from orchestrator.core.phases.starting import addresses, is_seeded, release, say_unfit
from orchestrator.core.phases.stopping import finish, grace_s, stop_all, stop_of, to_prove, unproven
from orchestrator.core.state.host import Host, HostState, Link
from orchestrator.core.state.instants import Deadline, Instant
from orchestrator.core.state.phase_states import Backoff, Ended, Intent, Pending, Phase, Running, Stopping
from orchestrator.core.state.run import Problem, Run
from orchestrator.core.state.task import TaskPhase
from orchestrator.core.turn import Turn
from orchestrator.core.words import duration

PREPARE_RETRY_S = 30.0
"""Until a host that could not be prepared is asked again, once the run has begun."""

STEADY_S = 60.0
"""A host that has come back is displayed as there for at least so long: one change a minute is as much as people can
follow. Less where the spec counts silent hosts as lost sooner, since only a host that is displayed as silent may be."""

_MUST_NOT_SUFFER = (Phase.RENDEZVOUS, Phase.RUNNING)
"""Phases of tasks that nobody wants to end."""


def silent_at(run: Run) -> Iterator[tuple[Host, Deadline]]:
    """Yield when each host will be displayed as unreachable unless it is heard. Those that are already are left out."""
    timing = run.plan.timing
    # A new coordinator has not heard any host yet: a host that never connects to it is as silent as one that stops
    # answering.
    judged = (Link.CONNECTED, Link.CONNECTING) if run.has_begun else (Link.CONNECTED,)
    # A host that has just come back may be cut off in one direction, or by a loose plug. It must not be displayed as
    # unreachable and connected in turns. This does not delay the decision that it is lost.
    steady_s = min(STEADY_S, timing.lost_after_s)
    for host in run.hosts:
        if host.link in judged:
            at = _last_sign_at(host) + timing.unreachable_after_s
            yield host, at if host.back_at is None else max(at, host.back_at + steady_s)


def _last_sign_at(host: Host) -> Instant:
    return host.heard_at if host.heard_at is not None else host.since_at


def note_silence(turn: Turn) -> None:
    """Display a host as unreachable that is silent for too long. Nothing else follows from it here.

    When more than half of the hosts are silent while tasks train, one sentence says that this machine is probably cut
    off.
    """
    silent = [host for host, at in silent_at(turn.run) if at <= turn.at]
    if not silent:
        return
    was_cut_off = is_cut_off(turn.run)
    for host in silent:
        turn.set_host(host, link=Link.UNREACHABLE, since_at=turn.at)
    if is_cut_off(turn.run) and len(turn.run.hosts) > 1 and turn.run.phase in _MUST_NOT_SUFFER:
        if not was_cut_off:
            away = sum(host.link is Link.UNREACHABLE for host in turn.run.assignees)
            turn.note(
                NoteKind.CUT_OFF,
                f"{away} of {len(turn.run.assignees)} hosts are silent: the head node is probably cut off; "
                "nothing is stopped or started until some are back",
            )
        return
    for host in silent:
        why = f": {host.problem}" if host.problem else ""
        turn.note(
            NoteKind.HOST_UNREACHABLE,
            f"{host.name} has been silent for {duration(turn.at - _last_sign_at(host))}{why}",
        )


def prepare_again(turn: Turn) -> None:
    for host in turn.run.hosts:
        if host.retry_at is not None and host.retry_at <= turn.at:
            turn.set_host(host, retry_at=None)
            turn.do(PrepareHost(host=host.name))


def host_up(turn: Turn, event: HostUp) -> None:
    host = turn.run.host(event.host)
    if host.boot_id is not None and host.boot_id != event.boot_id:
        what = (
            "is another pod, or its container was started again"
            if turn.run.plan.host(host.name).is_pod
            else "was rebooted"
        )
        turn.note(NoteKind.HOST_REBOOTED, ": ".join(filter(None, (f"{host.name} {what}", event.before))))
        host = turn.set_host(
            host, facts=None, unkillable=(), leave_at=None, leave_why="", before=event.before
        )
        if host.state in (HostState.OPEN, HostState.STUCK, HostState.LEAVING):
            host = turn.set_host(host, state=HostState.OPEN, state_why="")
    if host.dir_missing:  # a new agent does not look at the directory before it has an order about it
        host = turn.set_host(host, facts=None)
    if host.gone:
        turn.note(
            NoteKind.HOST_BACK,
            f"{host.name}, which was said to be gone for good, is back: the run's remaining processes there are ended; "
            f"`orch undrain {host.name}` lets it get tasks again",
        )
        host = turn.set_host(host, gone="", state_why="by the user, who said that it was gone")
    if event.warning is not None and event.warning != host.warning:
        turn.note(NoteKind.HOST_WARNING, f"{host.name}: {event.warning}")
    if event.slow is not None:
        turn.note(NoteKind.SLOW, f"{host.name} answers slowly: {event.slow}")
    turn.set_host(host, boot_id=event.boot_id, problem=None, retry_at=None, warning=event.warning)
    turn.do(*outstanding(turn.run, event.host, turn.at))


def host_prepared(turn: Turn, event: HostPrepared) -> None:
    """Record that a host is ready, and start the tasks that waited for it after a reboot."""
    host = turn.run.host(event.host)
    was_ready = host.facts is not None
    host_state.unkillable(turn, host.name, event.facts.unkillable)
    host = turn.set_host(
        turn.run.host(host.name), facts=event.facts, problem=None, retry_at=None, dir_missing=False
    )
    if not was_ready:
        turn.do(*_unstarted(turn.run, event.host))
    if turn.run.phase is not Phase.PENDING:
        say_unfit(turn, [host])


def _unstarted(run: Run, name: str) -> list[Action]:
    if run.phase not in _MUST_NOT_SUFFER or run.host(name).facts is None:
        return []  # without facts it is not known which code to run
    return [
        StartTask(host=name, task=task.id, generation=task.generation, port=task.port)
        for task in run.tasks_on(name)
        if task.phase is TaskPhase.STARTING and task.pid is None and task.ending is None
    ]


def outstanding(run: Run, name: str, at: Instant) -> list[Action]:
    """Return the orders to this host that are not known to be carried out. Each may be repeated without harm."""
    actions: list[Action] = []
    chief_here = run.task(run.chief).host == name
    if chief_here and final_verification.asked_at(run) is not None:
        actions.append(VerifyCheckpoint(host=name, generation=run.generation))
    is_ending = run.phase is Phase.STOPPING and run.proof is not None
    if name in unproven(run) or (is_ending and name in to_prove(run)):
        return [*actions, SweepHost(host=name, generation=run.generation_last)]
    if run.phase.is_terminal:
        return []
    if run.host(name).facts is None:
        actions.append(PrepareHost(host=name))
    if run.phase is Phase.RENDEZVOUS and not is_seeded(run) and chief_here:
        actions.append(SeedCheckpoint(host=name, generation=run.generation))
    # Whether a check of the newest checkpoint was ordered, and its answer may have been lost with a connection
    running = run.phase_state
    if (
        isinstance(running, Running) and running.verify_at is None and run.plan.checkpoint is not None
    ) and chief_here:
        actions.append(VerifyCheckpoint(host=name, generation=run.generation))
    if chief_here:
        actions += nonfinite.orders(run)
    actions += _unstarted(run, name)
    actions += standby.outstanding(run, name)
    for task in run.tasks_on(name):
        if task.phase.may_live and _ends_all(run):
            actions.append(stop_of(run, task, grace_s(run), at))
        elif task.ending is not None and task.phase.may_live:
            actions.append(StopTask(host=name, task=task.id, generation=task.generation, grace_s=0.0))
        elif task.phase is TaskPhase.RELEASED and run.phase is Phase.RUNNING:
            actions.append(release(run, task, addresses(run)))
    return actions


def _ends_all(run: Run) -> bool:
    """Return whether every task was told to end; before `force_at` some may end by themselves."""
    state = run.phase_state
    return isinstance(state, Backoff) or (isinstance(state, Stopping) and state.force_at is None)


def host_refused(turn: Turn, event: HostRefused) -> None:
    """Record a problem that a person must solve. A run that has not begun fails by it; a later one notes it once."""
    host = turn.run.host(event.host)
    if event.problem.code == AllocationGone.code and turn.run.has_begun:
        _taken_back(turn, host, event.problem)
        return
    needed = host.name in (assignee.name for assignee in turn.run.assignees)
    waited = turn.run.phase_state.waited if isinstance(turn.run.phase_state, Pending) else None
    is_held = needed and event.problem.code in compatibility.HELD_BY_OTHERS
    is_driven = event.problem.code == conflicts.DRIVEN and turn.run.generation > 0
    if waited is not None and (is_held or is_driven):
        wait_again(turn, waited, others=event.problem.message)
        return
    if host.problem != event.problem.message:
        turn.note(NoteKind.HOST_REFUSED, event.problem.message, code=event.problem.code)
    retry_at = turn.at + PREPARE_RETRY_S if host.facts is None else None
    turn.set_host(host, problem=event.problem.message, retry_at=retry_at)
    # Spares are asked too whether another coordinator drives a run: a run that it drives on a spare is a conflict as
    # well.
    if not turn.run.has_begun and (needed or event.problem.code == conflicts.DRIVEN):
        turn.set(problem=event.problem)
        finish(turn, Ended(phase=Phase.FAILED), event.problem.message)


def _taken_back(turn: Turn, host: Host, problem: Problem) -> None:
    """Count the tasks of a host as dead that its engine has taken back; end a run that has no other host left."""
    if host.gone:
        return
    reason = problem.message.partition(": ")[2]
    turn.set_host(
        host, state=HostState.DRAINED, state_why=f"gone: {reason}", gone=problem.code, problem=problem.message
    )
    same = any(
        reason in (other.problem or "") for other in turn.run.hosts if other.gone and other.name != host.name
    )
    what = f"{host.name} is gone for the same reason" if same else problem.message
    turn.note(NoteKind.HOST_GONE, f"{what}; no proof is awaited from it")
    for task in host_state.living(turn.run, host):
        host_state.lose(turn, task, what)
    if turn.run.phase.is_terminal:
        turn.do(CloseHost(host=host.name))
    elif all(other.gone for other in turn.run.hosts):
        if turn.run.has_no_process:
            turn.set(problem=problem)
            finish(turn, Ended(phase=Phase.FAILED), problem.message)
        elif turn.run.phase is not Phase.STOPPING:
            turn.set(problem=problem)
            stop_all(turn, Intent.FAIL, problem.message)
        elif turn.run.intent in (Intent.RESTART, Intent.RESCHEDULE):
            turn.set(problem=problem, reason=problem.message, reason_rest=None)
            turn.set_phase(intent=Intent.FAIL)


def swept(turn: Turn, event: HostSwept) -> None:
    run = turn.run
    if event.generation is not None and event.generation < run.generation_last:
        turn.do(SweepHost(host=event.host, generation=run.generation_last))
        return  # another coordinator has started a newer one since
    turn.set_phase(proof={**(run.proof or {}), event.host: event.swept})
    what = f"left: {'; '.join(event.swept.left)}" if event.swept.left else "no leftover processes"
    turn.note(NoteKind.SWEPT, f"{event.host}: {what} (checked by {event.swept.by})")
    if run.phase.is_terminal:
        turn.do(CloseHost(host=event.host))
