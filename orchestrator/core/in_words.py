"""Events and decisions as lines of text.

The transcripts in the tests, the account of a run whose decisions have stopped, and `orch replay`, which compares them
with what was recorded, are written in these lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from orchestrator.core.actions import (
    Action,
    CloseHost,
    CollectStacks,
    GoBack,
    Note,
    PrepareHost,
    ReleaseTask,
    StartTask,
    StopTask,
)
from orchestrator.core.events import Event, HostReported
from orchestrator.core.plan import TaskId
from orchestrator.core.state.run import Run

_WORD_MAX = 120
"""Characters of one value in the words of an event."""


@dataclass(frozen=True, slots=True)
class InWords:
    """The decision on one event."""

    phase: str
    """`RUNNING`, or `RUNNING -> STOPPING` where it was changed."""
    orders: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def is_like(self, other: InWords) -> bool:
        """Return whether both decisions are the same, apart from the wording of notes."""
        return (self.phase, self.orders, _kinds(self.notes)) == (
            other.phase,
            other.orders,
            _kinds(other.notes),
        )


def _kinds(notes: Sequence[str]) -> list[str]:
    return [note.partition(":")[0] for note in notes]


def decided(before: Run, after: Run, actions: Sequence[Action]) -> InWords:
    """Return the decision of `step` in words."""
    changed = after.phase_state.phase is not before.phase_state.phase
    return InWords(
        phase=f"{before.phase.value} -> {after.phase.value}" if changed else after.phase.value,
        orders=tuple(in_words(action) for action in actions if not isinstance(action, Note)),
        notes=tuple(in_words(action) for action in actions if isinstance(action, Note)),
    )


def in_words(action: Action) -> str:
    """Return one action as a line: who is to do what."""
    name = type(action).__name__
    match action:
        case Note(kind=kind, message=message):
            return f"note {kind.value}: {message}"
        case CollectStacks(generation=generation):
            return f"{name} gen {generation}"
        case PrepareHost(host=host) | CloseHost(host=host):
            return f"{name} {host}"
        case StopTask(host=host, task=task, generation=generation, grace_s=grace_s):
            rescues = (
                ", says what it holds"
                if action.compare
                else ", hands over its state"
                if action.rescue
                else ""
            )
            return f"{name} {task} gen {generation} on {host}, grace {grace_s:g} s{rescues}"
        case GoBack(host=host, generation=generation, before_step=step):
            return f"{name} before step {step} gen {generation} on {host}"
        case StartTask(standby=True):
            return f"{name} {action.task} gen {action.generation} on {action.host}, as a standby"
        case StartTask() | ReleaseTask():
            return f"{name} {action.task} gen {action.generation} on {action.host}"
        case _:
            return f"{name} gen {action.generation} on {action.host}"


def event_in_words(event: Event) -> str:
    """Return one event as a line: what happened, and where."""
    words = [type(event).__name__]
    for field in fields(event):
        value = getattr(event, field.name)
        if field.name != "at" and isinstance(value, str | bool | int | TaskId):
            words.append(f"{field.name}={str(value)[:_WORD_MAX]}")
    if isinstance(event, HostReported):
        words += [f"{report.task}={report.phase}" for report in event.tasks]
    return " ".join(words)
