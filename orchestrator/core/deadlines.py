"""When the state of a run changes by itself: one table of all that may come due.

A deadline is a field of the state with the type `instants.Deadline`, or follows from when a host was last heard. The
module that owns a deadline decides what happens when it passes, on the event `Ticked`. A test sets each field of that
type in turn, and checks that it is found here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from types import MappingProxyType

from orchestrator.core.hosts import silence
from orchestrator.core.phases import connecting, leaving, lifecycle, planned_end, room, standby
from orchestrator.core.phases.individual import may_start_individually, overdue_at
from orchestrator.core.phases.stall import stalled_at
from orchestrator.core.state.instants import Deadline, Kind, instants_of
from orchestrator.core.state.phase_states import Phase, Running
from orchestrator.core.state.run import Run

_Due = Iterable[Deadline | None]


def _of_the_phase(run: Run) -> _Due:
    """Yield the deadlines that belong to the phase itself."""
    kinds = instants_of(type(run.phase_state))
    return [getattr(run.phase_state, name) for name, kind in kinds.items() if kind is Kind.DUE]


def _individual_starts(run: Run) -> _Due:
    """Yield when tasks that are restarted alone start. One that waits for its host starts by an event instead."""
    if not isinstance(run.phase_state, Running):
        return []
    waiting = [task for task in run.tasks if task.start_at is not None]
    return [task.start_at for task in waiting if may_start_individually(run, task)]


def _individual_waits(run: Run) -> _Due:
    if not isinstance(run.phase_state, Running):
        return []
    return [overdue_at(task) for task in run.tasks if task.deadline_at is not None]


DEADLINES: MappingProxyType[str, Callable[[Run], _Due]] = MappingProxyType(
    {
        "what the phase waits for is over": _of_the_phase,
        "a silent host is lost": lambda run: [at for _, at in silence.lost_at(run)],
        "the chief's position stands still for too long": lambda run: [stalled_at(run)],
        "tasks have waited for their peers for too long": lambda run: [connecting.due_at(run)],
        "it is known whether the checkpoint directory is full": lambda run: [room.known_at(run)],
        "a host is displayed as unreachable": lambda run: [at for _, at in lifecycle.silent_at(run)],
        "a host that could not be prepared is asked again": lambda run: [h.retry_at for h in run.hosts],
        "the tasks of a host that leaves are asked to end": leaving.due,
        "the planned end of the run is wanted, or has come": planned_end.due,
        "a standby is started, or has not joined": standby.due,
        "a task is restarted by itself": _individual_starts,
        "a task that was restarted by itself has not joined, or does not end": _individual_waits,
    }
)
"""By what happens then."""


def next_deadline(run: Run) -> Deadline | None:
    """Return when the state changes by itself: the loop sleeps until then. None: only an event can change it."""
    if run.phase.is_terminal:
        return None
    return min(_known(run), default=None)


def ends_by_itself(run: Run) -> bool:
    """Return whether there is any deadline, without a look at them all."""
    return not run.phase.is_terminal and next(_known(run), None) is not None


def _known(run: Run) -> Iterator[Deadline]:
    if run.phase is Phase.QUEUED:  # none of its hosts is connected
        return (at for at in _of_the_phase(run) if at is not None)
    return (at for due in DEADLINES.values() for at in due(run) if at is not None)
