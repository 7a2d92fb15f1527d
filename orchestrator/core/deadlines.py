"""When the state of a run changes by itself.

A deadline is a field of the state with the type `instants.Deadline`, or follows from when a host was last heard. What
happens when it passes, on the event `Ticked`, is decided by the phase or the concern that names it. A test sets each
field of that type in turn, and checks that it is found here.
"""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.core.concerns import CONCERNS
from orchestrator.core.state.instants import Deadline, Kind, instants_of
from orchestrator.core.state.phase_states import Phase
from orchestrator.core.state.run import Run


def next_deadline(run: Run) -> Deadline | None:
    """Return when the state changes by itself: the loop sleeps until then. None: only an event can change it."""
    if run.phase.is_terminal:
        return None
    return min(_known(run), default=None)


def ends_by_itself(run: Run) -> bool:
    """Return whether there is any deadline, without a look at them all."""
    return not run.phase.is_terminal and next(_known(run), None) is not None


def _known(run: Run) -> Iterator[Deadline]:
    kinds = instants_of(type(run.phase_state))
    own = (getattr(run.phase_state, name) for name, kind in kinds.items() if kind is Kind.DUE)
    yield from (at for at in own if at is not None)
    if run.phase is not Phase.QUEUED:  # where none of its hosts is connected
        yield from (at for concern in CONCERNS for at in concern.due(run) if at is not None)
