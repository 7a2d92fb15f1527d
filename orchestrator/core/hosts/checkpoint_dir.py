"""The checkpoint directory as the hosts see it: whether it answers, has room, and when it is next looked at.

A shared directory may hang for minutes, and with it everything that uses it: the script that saves, and the check of
the newest checkpoint. A restart would not help, so the run waits, and says so.
"""

from __future__ import annotations

from orchestrator.core.events import HostReported
from orchestrator.core.hosts.slots import waits_for_checkpoint
from orchestrator.core.notes import NoteKind
from orchestrator.core.state.host import Host, Link
from orchestrator.core.state.instants import Deadline, Instant
from orchestrator.core.state.phase_states import Running
from orchestrator.core.state.run import Run
from orchestrator.core.turn import Turn
from orchestrator.core.words import duration, size

SILENT_S = 5.0
"""A directory that has not answered for this long is displayed as silent, and a standstill is not blamed on the
script."""

NOTED_S = 30.0
"""From then on it is an event too."""

VERIFY_SOON_S = 10.0
"""Once it answers again, the newest checkpoint is verified within this time."""

VERIFY_INTERVAL_MIN_S = 10.0
VERIFY_COST_FACTOR = 50.0
"""Reading a checkpoint costs CPU on the chief's host: it may take a fiftieth of the time, no more."""

VERIFY_WANTED_S = 2.0
"""While tasks wait for a checkpoint, to move off a host or to end, verifying may take half of the time."""

LOW_BYTES = 16 << 20
"""Less room than this is a full disk: hardly a checkpoint fits."""

ROOM_FACTOR = 4
"""There must be this many times as much before a full disk is said to have room, and to be full again."""

ROOM_BYTES = ROOM_FACTOR * LOW_BYTES
"""A full disk has room again from here on."""


def heard(turn: Turn, host: Host, event: HostReported) -> None:
    """Record what a report says of the checkpoint directory on that host."""
    before, now = host.dir_silent_s, event.dir_silent_s
    turn.set_host(turn.run.host(host.name), dir_silent_s=now, dir_free_bytes=event.dir_free_bytes)
    if turn.run.phase.is_terminal:
        return
    where = f"the checkpoint directory on {host.name}"
    if event.dir_missing is not None and event.dir_missing is not host.dir_missing:
        turn.set_host(turn.run.host(host.name), dir_missing=event.dir_missing)
        if event.dir_missing:
            turn.note(
                NoteKind.CHECKPOINT_DIR_MISSING,
                f"{_missing(turn.run, host)}; what is saved there is not shared",
            )
        else:
            turn.note(NoteKind.CHECKPOINT_DIR_BACK, f"{where} is there again")
    if before < NOTED_S <= now:
        turn.note(
            NoteKind.CHECKPOINT_DIR_SILENT, f"{where} has not answered for {duration(now)}; waiting for it"
        )
    elif now < SILENT_S <= before:
        if before >= NOTED_S:
            turn.note(NoteKind.CHECKPOINT_DIR_ANSWERS, f"{where} answers again after {duration(before)}")
        if turn.run.task(turn.run.chief).host == host.name:
            # The directory caused this pause, so it says nothing of the script's pace
            turn.forgive_standstill()
            # Verify the newest checkpoint soon: the time of a check that hung says nothing of what one costs.
            running = turn.run.phase_state
            if isinstance(running, Running):
                due_at = running.verify_at
                soon = turn.at + VERIFY_SOON_S
                turn.set_phase(answered_at=turn.at, verify_at=None if due_at is None else min(due_at, soon))
    host = turn.run.host(host.name)
    if event.dir_free_bytes is None:
        return
    if event.dir_free_bytes < LOW_BYTES and host.dir_low_at is None:
        turn.set_host(host, dir_low_at=turn.at)
        turn.note(
            NoteKind.CHECKPOINT_DISK_FULL,
            f"{where} has {size(event.dir_free_bytes)} left: a checkpoint saved now may be incomplete; "
            "verified ones stay",
            free_bytes=event.dir_free_bytes,
        )
    elif event.dir_free_bytes >= ROOM_BYTES and host.dir_low_at is not None:
        turn.set_host(host, dir_low_at=None)


def _missing(run: Run, host: Host) -> str:
    path = run.plan.checkpoint.dir if run.plan.checkpoint is not None else "the checkpoint directory"
    return f"{path} on {host.name} is not the directory in which the run saves: its share is not mounted"


def unmounted(run: Run, host: Host) -> str | None:
    """Return that the share is not mounted on a host that is otherwise ready; None if that is not known."""
    is_there = host.link is Link.CONNECTED and host.facts is not None
    return _missing(run, host) if is_there and host.dir_missing else None


def hangs(run: Run) -> bool:
    """Return whether the chief's host waits for the directory: then no task is to blame that the run stands still."""
    return run.host(run.task(run.chief).host).dir_silent_s >= SILENT_S


def next_verification(run: Run, at: Instant, took_s: float) -> Deadline | None:
    """Return when the newest checkpoint is next verified, after a verification that took so long."""
    if run.plan.checkpoint is None:
        return None
    if waits_for_checkpoint(run):
        return at + max(VERIFY_WANTED_S, took_s)
    return at + max(VERIFY_INTERVAL_MIN_S, VERIFY_COST_FACTOR * took_s)


def verify_soon(turn: Turn) -> None:
    """Verify the newest checkpoint at once, where a move or an end waits for a verified checkpoint."""
    running = turn.run.phase_state
    if isinstance(running, Running) and running.verify_at is not None and waits_for_checkpoint(turn.run):
        turn.set_phase(verify_at=min(running.verify_at, turn.at))


def diagnostic(run: Run) -> str:
    """Return what is wrong with the directory, to be appended to a sentence; empty if nothing is."""
    silent = [host for host in run.hosts if host.dir_silent_s >= SILENT_S]
    sentences = [
        f"the checkpoint directory on {h.name} has not answered for {duration(h.dir_silent_s)}"
        for h in silent
    ]
    sentences += [_missing(run, host) for host in run.hosts if host.dir_missing]
    sentences += [
        f"the disk of the checkpoint directory on {h.name} is full"
        for h in run.hosts
        if h.dir_low_at is not None
    ]
    return "".join(f"; {what}" for what in sentences)
