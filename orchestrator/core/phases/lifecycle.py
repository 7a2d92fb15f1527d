"""What is known of the hosts of a run: whether they are heard, connected and prepared, and what is asked of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from orchestrator.core import conflicts
from orchestrator.core.actions import CloseHost, PrepareHost, StartTask
from orchestrator.core.diagnosis import gpu_faults
from orchestrator.core.errors import AllocationGone
from orchestrator.core.events import EpochBegan, HostDown, HostPrepared, HostRefused, HostReported, HostUp
from orchestrator.core.gang import unstarted
from orchestrator.core.hosts import checkpoint_dir, compatibility, host_state, silence
from orchestrator.core.hosts.host_state import is_cut_off, say_unfit
from orchestrator.core.hosts.silence import last_word_at
from orchestrator.core.notes import NoteKind
from orchestrator.core.phases.stopping import (
    SWEEP_WAIT_S,
    finish,
    owes_proof,
    place_again,
    stop_all,
    wait_again,
)
from orchestrator.core.state.host import Host, HostState, Link
from orchestrator.core.state.instants import Deadline, Instant
from orchestrator.core.state.phase_states import Ended, Intent, Pending, Phase, Rendezvous, Stopping
from orchestrator.core.state.run import Problem, Run
from orchestrator.core.turn import Concern, Turn
from orchestrator.core.words import duration

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
            at = last_word_at(host) + timing.unreachable_after_s
            yield host, at if host.back_at is None else max(at, host.back_at + steady_s)


def _note_silence(turn: Turn) -> None:
    """Display a host as unreachable that is silent for too long. Nothing else follows from it here.

    When more than half of the hosts are silent while tasks train, one sentence says that this machine is probably cut
    off.
    """
    bound_s = turn.run.plan.timing.unreachable_after_s
    if all(host.heard_at is not None and host.heard_at + bound_s > turn.at for host in turn.run.hosts):
        return  # as nearly always, which is told at a quarter of the cost
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
            f"{host.name} has been silent for {duration(turn.at - last_word_at(host))}{why}",
        )


def _prepare_again(turn: Turn) -> None:
    for host in turn.run.hosts:
        if host.retry_at is not None and host.retry_at <= turn.at:
            turn.set_host(host, retry_at=None)
            turn.do(PrepareHost(host=host.name))


def _up(turn: Turn, event: HostUp) -> None:
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


def _prepared(turn: Turn, event: HostPrepared) -> None:
    """Record that a host is ready, and start the tasks that waited for it after a reboot."""
    host = turn.run.host(event.host)
    was_ready = host.facts is not None
    host_state.unkillable(turn, host.name, event.facts.unkillable)
    host = turn.set_host(
        turn.run.host(host.name), facts=event.facts, problem=None, retry_at=None, dir_missing=False
    )
    if not was_ready:
        turn.do(*unstarted(turn.run, event.host))
    if turn.run.phase is not Phase.PENDING:
        say_unfit(turn, [host])


def _refused(turn: Turn, event: HostRefused) -> None:
    """Record a problem that a person must solve. A run that has not begun fails by it; a later one notes it once.

    A run from the queue waits there for what the host may have again: GPUs, room, a directory.
    """
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
    if needed and _may_go_elsewhere(turn.run, event.problem):
        turn.note(NoteKind.HOST_REFUSED, event.problem.message, code=event.problem.code)
        if waited is None:
            place_again(turn, event.problem)
        else:
            # The same answer again, since nothing else was free meanwhile, is of no further host
            turn.set(refusals=turn.run.refusals + (event.problem.message != waited.others))
            wait_again(turn, waited, others=event.problem.message)
        return
    is_of_host = needed and event.problem.code in compatibility.OF_THE_HOST
    if waited is not None and not turn.run.has_begun and is_of_host:
        turn.set(refusals=0)
        wait_again(turn, waited, why=event.problem.message)
        return
    if host.problem != event.problem.message:
        turn.note(NoteKind.HOST_REFUSED, event.problem.message, code=event.problem.code)
    retry_at = turn.at + host_state.PREPARE_RETRY_S if host.facts is None else None
    turn.set_host(host, problem=event.problem.message, retry_at=retry_at)
    # Spares are asked too whether another coordinator drives a run: a run that it drives on a spare is a conflict as
    # well.
    if not turn.run.has_begun and (needed or event.problem.code == conflicts.DRIVEN):
        turn.set(problem=event.problem)
        finish(turn, Ended(phase=Phase.FAILED), event.problem.message)


ELSEWHERE_MAX = 3
"""For how many hosts that turn a run away another place is looked for, where it is not GPUs that others hold: then
the fault is likely the run's own."""


def _may_go_elsewhere(run: Run, problem: Problem) -> bool:
    """Return whether a run that has not begun may look for another place than the host that turns it away."""
    if run.has_begun or not run.plan.has_choice or problem.code == conflicts.DRIVEN:
        return False
    return problem.code in compatibility.HELD_BY_OTHERS or run.refusals < ELSEWHERE_MAX


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


def _heard(turn: Turn, event: HostReported) -> None:
    host = turn.run.host(event.host)
    if host.link is Link.UNREACHABLE:
        turn.note(
            NoteKind.HOST_BACK, f"{host.name} is reachable again after {duration(turn.at - host.since_at)}"
        )
        host = turn.set_host(host, back_at=turn.at, silent_at=last_word_at(host))
    is_back = host.link is not Link.CONNECTED
    was_cut_off = is_back and host_state.is_cut_off(turn.run)
    turn.set_host(
        host,
        link=Link.CONNECTED,
        since_at=host.since_at if host.link is Link.CONNECTED else turn.at,
        heard_at=turn.at,
        # The problem that keeps the host from serving the run.
        problem=None if host.facts is not None else host.problem,
        measured=event.measured,
        gpu_loads=event.gpu_loads,
    )
    if was_cut_off and turn.run.phase is Phase.RUNNING and not host_state.is_cut_off(turn.run):
        turn.set(connected_again_at=turn.at)
    checkpoint_dir.heard(turn, host, event)
    gpu_faults.heard(turn, turn.run.host(host.name), event.gpu_faults)
    host_state.unkillable(turn, host.name, event.unkillable)


def _begin_epoch(turn: Turn, event: EpochBegan) -> None:
    """Begin an epoch: another coordinator has taken the journal.

    The new coordinator knows what was decided, and nothing about the hosts.
    """
    forgotten = tuple(
        replace(host, link=Link.CONNECTING, since_at=turn.at, heard_at=None, retry_at=None)
        for host in turn.run.hosts
    )
    tasks = tuple(replace(task, heard_at=None) for task in turn.run.tasks)
    turn.set(epoch=event.epoch, hosts=forgotten, tasks=tasks, owner=event.owner or turn.run.owner)
    waiting = turn.run.phase_state
    if isinstance(waiting, Pending | Rendezvous | Stopping) and waiting.deadline_at is not None:
        # Only a moment of the wait may be left, and the hosts must be connected first: so the wait is made longer.
        patience_s = turn.run.plan.timing.unreachable_after_s + SWEEP_WAIT_S
        turn.set_phase(deadline_at=max(waiting.deadline_at, turn.at + patience_s))
    if not turn.run.phase.is_terminal:
        turn.note(
            NoteKind.EPOCH, f"coordinator {event.epoch} takes up {turn.run.run_id} in {turn.run.phase.value}"
        )


def _watch(turn: Turn) -> None:
    _note_silence(turn)
    _prepare_again(turn)


def _due(run: Run) -> Iterable[Deadline | None]:
    lost = [at for _, at in silence.lost_at(run)]
    return [*lost, *(at for _, at in silent_at(run)), *(host.retry_at for host in run.hosts)]


def _repeats(run: Run, name: str, _at: Instant) -> list[PrepareHost] | list[StartTask]:
    if run.phase.is_terminal or owes_proof(run, name):
        return []
    return [PrepareHost(host=name)] if run.host(name).facts is None else unstarted(run, name)


CONCERN = Concern(
    "hosts",
    on={
        EpochBegan: _begin_epoch,
        HostUp: _up,
        HostDown: lambda turn, event: turn.set_host(turn.run.host(event.host), problem=event.problem),
        HostRefused: _refused,
        HostPrepared: _prepared,
        HostReported: _heard,
    },
    watch=_watch,
    advance={Phase.PENDING: silence.judge, Phase.BACKOFF: silence.judge},
    due=_due,
    repeats=_repeats,
)
