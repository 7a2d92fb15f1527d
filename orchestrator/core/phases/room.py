"""A full checkpoint directory.

A generation that ended because of it does not count as a failure, and the run waits for room.

A person must make room, and needs to do nothing else: the run resumes by itself when a report shows enough. Free space
is reported with some delay, so a script that says that a disk is full is judged only by a newer report. Where the
checkpoint directory has room, it is another disk that is full, and the ordinary rules hold.
"""

from __future__ import annotations

from collections.abc import Iterable

from orchestrator.core.causes import Cause
from orchestrator.core.gang import handed_over
from orchestrator.core.hosts import host_state
from orchestrator.core.hosts.checkpoint_dir import LOW_BYTES, ROOM_BYTES
from orchestrator.core.moments import Restarts
from orchestrator.core.notes import NoteKind
from orchestrator.core.phases.stopping import count_free, say_done, why
from orchestrator.core.state.host import Host, Link
from orchestrator.core.state.instants import Deadline, Instant, is_due
from orchestrator.core.state.phase_states import Backoff, Intent, Phase
from orchestrator.core.state.run import Run
from orchestrator.core.turn import Concern, Turn
from orchestrator.core.words import duration, size

REPORT_WAIT_S = 15.0
"""Hosts check the directory every 10 s, so a report this long after an end is based on a newer check."""

RETRY_S = 300.0
"""It is tried again this often, unless reports say that the disk is still full: a host may not say what is free."""


COPIES = 2
"""A generation needs room for the copy of a checkpoint that it starts from, and for the next one that it saves."""


def room_bytes(run: Run) -> int:
    """Return how many bytes must be free before a generation that ended because of a full disk starts again.

    It is never less than what counts as full, and a guess where no checkpoint's size is known.
    """
    known = run.checkpoint.bytes if run.checkpoint is not None else None
    return ROOM_BYTES if known is None else max(LOW_BYTES, COPIES * known)


def _free_bytes(host: Host) -> int | None:
    return host.dir_free_bytes if host.link is Link.CONNECTED else None


def lacking(run: Run, blamed: Cause) -> Host | None:
    """Return the host whose checkpoint directory was full, if this generation ended because of that."""
    first_cause = run.first_cause
    if run.plan.checkpoint is None or first_cause is None or not blamed.row.may_want_room:
        return None
    if handed_over(run) is not None:
        return None  # there was room for that, and the next start makes room for its saves
    if blamed is Cause.DISK and first_cause.task is None and first_cause.host is not None:
        return run.host(first_cause.host)  # the seeding said so itself
    # The assignee that reports the least room in the checkpoint directory; None where none reports it
    known = [(free, host.name) for host in run.assignees if (free := _free_bytes(host)) is not None]
    host = run.host(min(known)[1]) if known else None
    enough = room_bytes(run) if blamed is Cause.DISK else LOW_BYTES
    return host if host is not None and (host.dir_free_bytes or 0) < enough else None


def known_at(run: Run) -> Deadline | None:
    """Return by when it is known whether a full checkpoint directory was the cause; None if that is not awaited."""
    first_cause = run.first_cause
    if run.intent is not Intent.RESTART or first_cause is None or first_cause.cause is not Cause.DISK:
        return None
    if run.plan.checkpoint is None or any(task.phase.may_live for task in run.tasks):
        return None
    return run.since_at + REPORT_WAIT_S if lacking(run, Cause.DISK) is None else None


def _needed_bytes(run: Run, host: Host) -> int | None:
    """Return how much room to wait for; None if that is unknown: more than the known need is free already."""
    free, enough = _free_bytes(host), room_bytes(run)
    return enough if free is not None and free < enough else None


def _free(free: int | None) -> str:
    return f"{size(free)} free" if free is not None else "what is free is not known"


def _waits(run: Run, now: Instant) -> str:
    """Return a sentence on the wait: how much is free and needed, and what ends it."""
    waiting = run.phase_state
    if not isinstance(waiting, Backoff) or not waiting.full_host:
        return "waiting to see whether the checkpoint directory has room" if known_at(run) is not None else ""
    host = run.host(waiting.full_host)
    free, needed = _free_bytes(host), waiting.needed_bytes
    since_at = min(run.since_at, host.dir_low_at if host.dir_low_at is not None else run.since_at)
    amounts = _free(free) + (f", {size(needed)} needed" if needed is not None else ", more is needed")
    resumes = "resumes by itself when there is room"
    if waiting.start_at is not None and (free is None or free >= LOW_BYTES):
        resumes += f", tries again in {duration(waiting.start_at - now)}"
    return f"no space in the checkpoint directory on {host.name} for {duration(now - since_at)}; {amounts}; {resumes}"


def _restarts(turn: Turn, moment: Restarts) -> bool:
    """Let the run wait for room, or until it is known whether there is; return whether it waits."""
    if not is_due(known_at(turn.run) or turn.at, turn.at):
        return True
    full = lacking(turn.run, moment.blamed)
    if full is None:
        return False
    host_state.charge(turn, progressed=moment.progressed)
    _wait(turn, full)
    return True


def _wait(turn: Turn, full: Host) -> None:
    """Wait for room in the checkpoint directory. A full disk is not the script's fault: no failure is counted."""
    count_free(turn)
    first_cause = turn.run.first_cause
    state = Backoff(
        start_at=turn.at + RETRY_S, full_host=full.name, needed_bytes=_needed_bytes(turn.run, full)
    )
    turn.enter(state, first_cause.sentence if first_cause else turn.run.reason)
    what = f"waits for room in the checkpoint directory on {full.name}"
    say_done(turn, f"{what}; the restart budget is untouched")
    turn.note(
        NoteKind.WAITING_FOR_ROOM,
        f"{turn.run.run_id} {what}: {turn.run.reason}",
        first_cause.task if first_cause else None,
        free_bytes=full.dir_free_bytes,
        **why(turn.run),
    )


def _advance(turn: Turn) -> None:
    """End the wait when there is room, or when it is time to try again."""
    waiting = turn.run.within(Backoff)
    if not waiting.full_host:
        return
    host = turn.run.host(waiting.full_host)
    free, needed = _free_bytes(host), waiting.needed_bytes
    where = f"the checkpoint directory on {host.name}"
    if free is not None and needed is not None and free >= needed:
        turn.note(NoteKind.ROOM_AGAIN, f"{where} has {size(free)} free again", free_bytes=free)
        turn.set_phase(start_at=turn.at, full_host="")
    elif is_due(waiting.start_at, turn.at) and (free is None or free >= LOW_BYTES):
        turn.note(NoteKind.ROOM_RETRY, f"tries again whether {where} has room: {_free(free)}")
        turn.set_phase(full_host="")
    elif is_due(waiting.start_at, turn.at):
        turn.set_phase(start_at=turn.at + RETRY_S)
    elif needed is None and _needed_bytes(turn.run, host) is not None:
        turn.set_phase(needed_bytes=_needed_bytes(turn.run, host))


def _due(run: Run) -> Iterable[Deadline | None]:
    yield known_at(run)


CONCERN = Concern(
    "room for checkpoints",
    on={Restarts: _restarts},
    advance={Phase.BACKOFF: _advance},
    due=_due,
    waits=_waits,
)
