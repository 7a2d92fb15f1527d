"""What `step` returns: the state, the actions, and the weight of the decision.

The weight says what the loop must do before it carries out the actions: nothing, show the state, or journal it first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import Enum
from typing import NamedTuple

from orchestrator.core import report_fields
from orchestrator.core.actions import Action, VerifyCheckpoint
from orchestrator.core.events import CheckpointVerified, Event, HostReported, Ticked
from orchestrator.core.phases.stall import may_be_frozen
from orchestrator.core.state.phase_states import Phase, Running
from orchestrator.core.state.run import Run


class Weight(Enum):
    """What must be done about a decision. Each weight includes what the lighter ones ask for."""

    NOTHING = 0
    """Nothing has changed."""
    NUMBERS = 1
    """Numbers to show have changed. They can only postpone a deadline, since a host or a task was heard."""
    STATE = 2
    """The state has changed. Whoever goes on without the journal finds the same by looking."""
    JOURNAL = 3
    """The journal must have it before anything is done."""


class Decision(NamedTuple):
    """What follows from an event."""

    run: Run
    actions: list[Action]
    weight: Weight


_WAITS_FOR_NO_NUMBER = (Phase.PENDING, Phase.RENDEZVOUS, Phase.RUNNING)
"""Phases in which no number of a report is waited for. In others, the run may wait for room on a disk, or for the end
of a task that a report leaves out."""


def is_quiet(before: Run, after: Run, event: Event) -> bool:
    """Return whether `event` is a report that changed numbers only. Then nothing is decided, checked or kept.

    That is nearly every heartbeat, of nearly every host, so what is done for one must not grow with the number of
    hosts. The chief's position is what a stall is judged by, so the report of its host is never quiet. A deadline that
    has passed meanwhile is handled at the next `Ticked`.
    """
    if not isinstance(event, HostReported) or before.phase not in _WAITS_FOR_NO_NUMBER:
        return False
    tasks = after.tasks_on(event.host)
    return (
        before.phase is after.phase
        and all(task.id != after.chief for task in tasks)
        and report_fields.waking(before, event.host) == report_fields.waking(after, event.host)
        and not any(may_be_frozen(after, task) for task in tasks)
    )


def weigh(before: Run, after: Run, event: Event, actions: Sequence[Action]) -> Weight:
    """Return the weight of a decision that was not quiet.

    Of a heartbeat, only beliefs that the next heartbeat does not bring again must be kept. A check of the newest
    checkpoint that finds nothing new need not be kept either: the next coordinator makes its own. Every other order or
    note must be kept, and whatever a person or another host said.
    """
    if after == before and not actions:
        return Weight.NOTHING
    if isinstance(event, Ticked | CheckpointVerified):
        return Weight.STATE if _only_looks(before, after, actions) else Weight.JOURNAL
    if actions or not isinstance(event, HostReported):
        return Weight.JOURNAL
    is_known = report_fields.kept(before, event.host) == report_fields.kept(after, event.host)
    return Weight.STATE if is_known else Weight.JOURNAL


def _only_looks(before: Run, after: Run, actions: Sequence[Action]) -> bool:
    """Return whether nothing has changed but the time of the next check of the newest checkpoint."""
    old, new = before.phase_state, after.phase_state
    if not isinstance(old, Running) or not isinstance(new, Running):
        return False
    ordered = all(isinstance(action, VerifyCheckpoint) for action in actions)
    return ordered and replace(after, phase_state=replace(new, verify_at=old.verify_at)) == before
