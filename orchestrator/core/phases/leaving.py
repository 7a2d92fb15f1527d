"""A host that leaves: its provider has announced that it will be taken away.

Nothing has failed yet, and there is a little time. Its tasks train on until the next checkpoint is verified, and at the
latest until they need the rest of the time to end in order. Then the gang moves, where another host can take the tasks.
Where none can, the run ends with its checkpoint saved: such a host does not come back by itself, so nobody waits for
it. A host repeats the announcement in every report, so another coordinator learns of it too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from orchestrator.core.causes import Cause
from orchestrator.core.ends import FirstCause
from orchestrator.core.events import HostReported
from orchestrator.core.hosts import host_state, slots
from orchestrator.core.hosts.checkpoint_dir import verify_soon
from orchestrator.core.hosts.silence import last_word_at
from orchestrator.core.moments import MayStop, Waits
from orchestrator.core.notes import NoteKind
from orchestrator.core.phases.stopping import END_S, finish, stop_all
from orchestrator.core.state.host import Host, HostState, Link
from orchestrator.core.state.instants import Deadline, Instant, is_due
from orchestrator.core.state.phase_states import Backoff, Ended, Intent, Phase
from orchestrator.core.state.run import Run
from orchestrator.core.turn import Concern, Turn
from orchestrator.core.words import duration, listed

_SOONER_S = 1.0
"""A deadline that is told again differs by the time that reports take. One that is far off must differ by a tenth."""

_WARNED = (HostState.OPEN, HostState.QUARANTINED)
"""States that it replaces. Who is drained or stuck gets no tasks anyway, and stays so if it stays."""


def _hear(turn: Turn, event: HostReported) -> None:
    """Record what a host reports of its leaving: a first announcement, an earlier time, or that it stays."""
    leaving, name = event.leaving, event.host
    host = turn.run.host(name)
    if turn.run.phase.is_terminal:
        return
    if leaving is None:
        if host.leave_at is not None:
            _stays(turn, host)
        return
    leave_at = turn.at + leaving.in_s - turn.run.plan.timing.kill_grace_s - END_S
    left_s = host.leave_at - turn.at if host.leave_at is not None else None
    if left_s is not None and leave_at - turn.at > left_s - max(_SOONER_S, left_s / 10):
        return
    state = HostState.LEAVING if host.state in _WARNED else host.state
    why = leaving.why if state is HostState.LEAVING else host.state_why
    turn.set_host(host, leave_at=leave_at, leave_why=leaving.why, state=state, state_why=why)
    when = f"in {duration(leaving.in_s)}" if leaving.in_s else "now"
    turn.note(NoteKind.HOST_LEAVES, f"{name} leaves {when}: {leaving.why}{_then(turn, name)}")
    if left_s is None:
        verify_soon(turn)


def _then(turn: Turn, name: str) -> str:
    """Return what becomes of the host's tasks, as the end of a sentence."""
    run = turn.run
    if not run.tasks_on(name) or run.phase not in (Phase.RENDEZVOUS, Phase.RUNNING):
        return ""
    if is_due(_in_vain_at(run), turn.at):
        return "; no other host can take its tasks, so the run saves and ends"
    return "; its tasks are saved and move to another host"


def _stays(turn: Turn, host: Host) -> None:
    host = turn.set_host(host, leave_at=None, leave_why="")
    if host.state is HostState.LEAVING:
        host_state.reopen(turn, host)
    turn.note(NoteKind.HOST_STAYS, f"{host.name} stays after all")


def _due(run: Run) -> Sequence[Deadline | None]:
    """Return when the tasks on hosts that leave are asked to end, or when no host is left that may take them.

    A coordinator that is cut off stops nothing, and starts nothing.
    """
    if host_state.is_cut_off(run):
        return ()
    if isinstance(run.phase_state, Backoff):
        return [_in_vain_at(run)] if run.phase_state.start_at is None else ()
    return (
        [host.leave_at for host in host_state.leaving(run)]
        if run.phase in (Phase.RENDEZVOUS, Phase.RUNNING)
        else ()
    )


def _advance(turn: Turn) -> None:
    """Leave when there is no more time, and before anything trains there."""
    if turn.run.phase is Phase.RENDEZVOUS and _due(turn.run):
        _leave(turn, "nothing trains yet")
    elif any(is_due(at, turn.at) for at in _due(turn.run)):
        _leave(turn, "there is no more time")


def _leave(turn: Turn, occasion: str) -> None:
    """Let all tasks end in order and go on elsewhere; end the run where no other host can take them.

    Hosts that are not ready at this moment are waited for once the tasks are saved.
    """
    if host_state.is_cut_off(turn.run):
        return
    if _waits_in_vain(turn.run, turn.at):
        _end(turn)
        return
    stop_all(
        turn,
        Intent.RESCHEDULE,
        f"{_sentence(host_state.leaving(turn.run))}; {occasion}: all tasks stop to move off",
    )


def _waits_in_vain(run: Run, now: Instant) -> bool:
    """Return whether the next generation waits for a host that leaves or has left, and no host can replace it."""
    return not host_state.is_cut_off(run) and is_due(_in_vain_at(run), now)


def _in_vain_at(run: Run) -> Deadline | None:
    """Return from when on the next generation waits in vain; None if it does not.

    A host that is not ready may be back at once, and counts until it has been silent for as long as one that is lost.
    Before the run has begun, the deadline of the start bounds that wait.
    """
    gone = [host for host in run.hosts if host.leave_at is not None]
    if not gone or not _waits_for_any(run, gone):
        return None
    facts = next((host.facts for host in gone if host.facts is not None), None)
    for host in sorted(_away(run), key=last_word_at, reverse=True):
        back = replace(host, link=Link.CONNECTED, problem=None, facts=host.facts or facts)
        run = run.with_host(back)
        if not _waits_for_any(run, gone):
            return last_word_at(host) + run.plan.timing.lost_after_s
    return run.since_at


def _away(run: Run) -> list[Host]:
    """Return the hosts that are only not ready yet; those that were refused are left out."""
    may_return = [host for host in run.hosts if host.state is HostState.OPEN and host.retry_at is None]
    return [h for h in may_return if run.phase is not Phase.PENDING and not slots.is_ready(run, h)]


def _waits_for_any(run: Run, gone: Sequence[Host]) -> bool:
    return not {host.name for host in gone}.isdisjoint(slots.next_assignment(run).waits_for)


def _wait(turn: Turn, _moment: Waits) -> bool:
    """End the run where it waits in vain; return whether it does."""
    is_in_vain = _waits_in_vain(turn.run, turn.at)
    if is_in_vain:
        _end(turn)
    return is_in_vain


def _may_stop(turn: Turn, moment: MayStop) -> None:
    if turn.run.phase is Phase.RUNNING and host_state.leaving(turn.run):
        _leave(turn, moment.occasion)


def _end(turn: Turn) -> None:
    """End the run. It can be started again from its last checkpoint once there are other hosts."""
    run = turn.run
    gone = host_state.leaving(run) or [host for host in run.hosts if host.leave_at is not None]
    sentence = f"{_sentence(gone)}; no other host can take the tasks"
    first_cause = FirstCause(None, run.generation, Cause.HOST_LEAVES, sentence, host=gone[0].name)
    turn.set(first_cause=first_cause)
    if run.has_no_process:
        finish(turn, Ended(phase=Phase.KILLED), sentence)
        return
    stop_all(turn, Intent.KILL, sentence, rest="")


def _sentence(hosts: Sequence[Host]) -> str:
    """Return a sentence such as `a, b leave: the time limit is near`."""
    verb = "leaves" if len(hosts) == 1 else "leave"
    reasons = "; ".join(dict.fromkeys(host.leave_why for host in hosts))
    return f"{listed([host.name for host in hosts])} {verb}: {reasons}"


def _says(run: Run, now: Instant) -> str:
    """Return the end of a sentence that says when a run that trains will have to stop."""
    gone = host_state.leaving(run)
    if not gone:
        return ""
    left_s = max(0.0, min(host.leave_at for host in gone if host.leave_at is not None) - now)
    then = "the run ends" if is_due(_in_vain_at(run), now) else "its tasks move"
    return f"; {_sentence(gone)}: {then} at the next checkpoint, or in {duration(left_s)}"


CONCERN = Concern(
    "hosts that leave",
    on={HostReported: _hear, Waits: _wait, MayStop: _may_stop},
    advance={Phase.RENDEZVOUS: _advance, Phase.RUNNING: _advance},
    due=_due,
    says=_says,
)
