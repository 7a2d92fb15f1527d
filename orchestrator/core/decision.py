"""What one turn has decided: in words, and whether it must be kept.

The words are those of the transcripts in the tests, of the story of a run whose decisions have stopped, and of `orch
replay`, which compares them with what was recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from orchestrator.core.actions import (
    Action,
    CloseHost,
    CollectStacks,
    Note,
    PrepareHost,
    ReleaseTask,
    StartTask,
    StopTask,
    VerifyCheckpoint,
)
from orchestrator.core.events import CheckpointVerified, Event, HostReported, Ticked
from orchestrator.core.plan import TaskId
from orchestrator.core.state.phase_states import Running
from orchestrator.core.state.run import Run

_WORD_MAX = 120
"""Characters of one value in the words of an event."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What followed from one event."""

    phase: str
    """`RUNNING`, or `RUNNING -> STOPPING` where it was changed."""
    orders: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def is_like(self, other: Decision) -> bool:
        """Return whether the same was decided. How a note is worded decides nothing."""
        return (self.phase, self.orders, _kinds(self.notes)) == (
            other.phase,
            other.orders,
            _kinds(other.notes),
        )


def _kinds(notes: Sequence[str]) -> list[str]:
    return [note.partition(":")[0] for note in notes]


def decided(before: Run, after: Run, actions: Sequence[Action]) -> Decision:
    """Put the answer of `step` into words."""
    changed = after.phase_state.phase is not before.phase_state.phase
    return Decision(
        phase=f"{before.phase.value} -> {after.phase.value}" if changed else after.phase.value,
        orders=tuple(in_words(action) for action in actions if not isinstance(action, Note)),
        notes=tuple(in_words(action) for action in actions if isinstance(action, Note)),
    )


def in_words(action: Action) -> str:
    """Put one action into a line: who is to do what."""
    name = type(action).__name__
    match action:
        case Note(kind=kind, message=message):
            return f"note {kind.value}: {message}"
        case CollectStacks(generation=generation):
            return f"{name} gen {generation}"
        case PrepareHost(host=host) | CloseHost(host=host):
            return f"{name} {host}"
        case StopTask(host=host, task=task, generation=generation, grace_s=grace_s):
            return f"{name} {task} gen {generation} on {host}, grace {grace_s:g} s"
        case StartTask(standby=True):
            return f"{name} {action.task} gen {action.generation} on {action.host}, as a standby"
        case StartTask() | ReleaseTask():
            return f"{name} {action.task} gen {action.generation} on {action.host}"
        case _:
            return f"{name} gen {action.generation} on {action.host}"


def event_in_words(event: Event) -> str:
    """Put one event into a line: what happened, and where."""
    words = [type(event).__name__]
    for field in fields(event):
        value = getattr(event, field.name)
        if field.name != "at" and isinstance(value, str | bool | int | TaskId):
            words.append(f"{field.name}={str(value)[:_WORD_MAX]}")
    if isinstance(event, HostReported):
        words += [f"{told.task}={told.phase}" for told in event.tasks]
    return " ".join(words)


def is_worth_keeping(before: Run, after: Run, event: Event, actions: Sequence[Action]) -> bool:
    """Return whether the journal must have this turn before anything else happens.

    A heartbeat that only moves numbers need not be kept: the next one brings them anyway. Nor need a look at the newest
    checkpoint that finds nothing new: the next coordinator looks by itself. Whatever else is ordered or noted, and
    whatever a person or another host said, must be.
    """
    if isinstance(event, Ticked | CheckpointVerified):
        return not _only_looks(before, after, actions)
    if actions or not isinstance(event, HostReported):
        return True
    return _beliefs(before, event.host) != _beliefs(after, event.host)


def _only_looks(before: Run, after: Run, actions: Sequence[Action]) -> bool:
    """Return whether nothing has changed but when the newest checkpoint is looked at."""
    old, new = before.phase_state, after.phase_state
    if not isinstance(old, Running) or not isinstance(new, Running):
        return False
    ordered = all(isinstance(action, VerifyCheckpoint) for action in actions)
    return ordered and replace(after, phase_state=replace(new, verify_at=old.verify_at)) == before


def _beliefs(run: Run, host: str) -> tuple[object, ...]:
    """Return the values that a report may change alone, and that the next coordinator must find in the journal."""
    tasks = [(t.id, t.phase, t.pid, t.port, t.first_step is None) for t in run.tasks_on(host)]
    waiting = [(t.id, t.phase, t.pid, t.port) for t in run.standby.tasks_on(host)]
    return run.phase, run.generation, run.reason, tasks, waiting, run.host(host).link
