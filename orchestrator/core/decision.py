"""What one turn has decided, and whether that must be kept."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.core.actions import Action
from orchestrator.core.events import Event, HostReported
from orchestrator.core.model import Run


def is_worth_keeping(before: Run, after: Run, event: Event, actions: Sequence[Action]) -> bool:
    """Return whether the journal must have this turn before anything else happens.

    A heartbeat that only moves numbers need not be kept: the next one brings them anyway. Whatever is ordered or noted,
    and whatever a person or another host said, must be.
    """
    if actions or not isinstance(event, HostReported):
        return True
    return _beliefs(before) != _beliefs(after)


def _beliefs(run: Run) -> tuple[object, ...]:
    """What of a state the next coordinator could not do without."""
    tasks = [(t.id, t.phase, t.pid, t.port, t.first_step is None) for t in run.tasks]
    return run.phase, run.generation, run.reason, tasks, [host.link for host in run.hosts]
