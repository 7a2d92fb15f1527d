"""How often one host may make people read: what it can say again and again has a limit by the minute.

A host chooses the values that it reports, and may change them in each report. Its state follows all of them; only the
notes are limited, and their length.
"""

from __future__ import annotations

from orchestrator.core.actions import Note
from orchestrator.core.ends import Injected
from orchestrator.core.events import ClockDiffers, FaultInjected, LimitReached, NoticeFailed
from orchestrator.core.faults import KINDS
from orchestrator.core.notes import NoteKind
from orchestrator.core.replacing import replace
from orchestrator.core.turn import Concern, Turn

NOTES_MAX = 20
"""How many notes of kinds that may repeat are kept of a host in WINDOW_S."""

WINDOW_S = 60.0

CHARS_MAX = 2000
"""How long such a note may be."""


def moderate(turn: Turn, name: str) -> None:
    """Leave out the notes of this turn that are beyond the limit of the host, and say so once."""
    repeated = [action for action in turn.actions if isinstance(action, Note) and action.kind.row.may_repeat]
    if not repeated:
        return
    host = turn.run.host(name)
    if host.noted_since_at is None or turn.at - host.noted_since_at >= WINDOW_S:
        host = turn.set_host(host, noted_since_at=turn.at, noted=0)
    kept = iter([True] * max(0, NOTES_MAX - host.noted))
    actions, turn.actions = turn.actions, []
    for action in actions:
        if not isinstance(action, Note) or not action.kind.row.may_repeat:
            turn.do(action)
        elif next(kept, False):
            turn.do(replace(action, message=action.message[:CHARS_MAX]))
    if host.noted <= NOTES_MAX < host.noted + len(repeated):
        turn.note(
            NoteKind.LIMIT_REACHED,
            f"{name} reports more changes than people can read: for a minute, further ones are left out here",
        )
    turn.set_host(host, noted=min(host.noted + len(repeated), NOTES_MAX + 1))


def _injected(turn: Turn, event: FaultInjected) -> None:
    """Remember the fault that is injected into a task, so that its end is explained by that fault."""
    fault = event.fault
    turn.note(NoteKind.CHAOS, fault.sentence, fault.task)
    if fault.task is not None and turn.run.task(fault.task).generation == fault.generation:
        lasts_s = fault.for_s if KINDS[fault.kind].lasts else 0.0
        injected = Injected(f"{fault.kind} {fault.target}", turn.at, lasts_s)
        turn.set_task(turn.run.task(fault.task), injected=injected)


CONCERN = Concern(
    "what is only noted",
    on={
        LimitReached: lambda turn, event: turn.note(NoteKind.LIMIT_REACHED, event.message, event.task),
        ClockDiffers: lambda turn, event: turn.note(NoteKind.HOST_CLOCK, event.message, event.task),
        NoticeFailed: lambda turn, event: turn.note(
            NoteKind.NOTICE_FAILED, f"{event.recipient}: {event.problem}", recipient=event.recipient
        ),
        FaultInjected: _injected,
    },
)
