"""All concerns of a run in their order, which is the order in which they hear an event and move the run on.

The reasons. What is known of the hosts comes first, and which it has: everything else is decided by it. In RUNNING,
what makes an end no success comes before the ends (`nonfinite`, `own_place`), what ends the generation before what may
move it at a checkpoint, and what is judged by a standstill last. At a checkpoint an end that somebody wants comes
before a move off a host that leaves, and that before a move that is only better. The standby hears a report after tasks
of other generations were ended, of which it may be one, and before a task that dies may want its place. A survivor is
chosen before its generation is given up. A phase that a concern has entered is the others' from the next round on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orchestrator.core.actions import Action
from orchestrator.core.events import HostUp
from orchestrator.core.hosts import moderation
from orchestrator.core.phases import (
    borrowed,
    checkpoints,
    connecting,
    host_reports,
    individual,
    leaving,
    lifecycle,
    nonfinite,
    own_place,
    planned_end,
    reschedule,
    rescue,
    room,
    running,
    settling,
    stall,
    standby,
    starting,
)
from orchestrator.core.state.instants import Instant
from orchestrator.core.state.run import Run
from orchestrator.core.turn import Concern, Hears, Turn

CONCERNS: tuple[Concern, ...] = (
    lifecycle.CONCERN,
    borrowed.CONCERN,
    room.CONCERN,
    starting.CONCERN,
    nonfinite.CONCERN,
    own_place.CONCERN,
    running.CONCERN,
    checkpoints.CONCERN,
    planned_end.CONCERN,
    leaving.CONCERN,
    reschedule.CONCERN,
    connecting.CONCERN,
    individual.CONCERN,
    stall.CONCERN,
    host_reports.OTHERS,
    standby.CONCERN,
    host_reports.CONCERN,
    rescue.CONCERN,
    settling.CONCERN,
    moderation.CONCERN,
)


def outstanding(run: Run, name: str, at: Instant) -> list[Action]:
    """Return the orders to this host that are not known to be carried out. Each may be repeated without harm."""
    return [order for concern in CONCERNS for order in concern.repeats(run, name, at)]


def _repeat(turn: Turn, event: HostUp) -> None:
    turn.do(*outstanding(turn.run, event.host, turn.at))


def _all_that_hear(what: type[Any]) -> Sequence[Hears]:
    hearing = [concern.on[what] for concern in CONCERNS if what in concern.on]
    return (*hearing, _repeat) if what is HostUp else hearing


HEARS = {what: _all_that_hear(what) for concern in CONCERNS for what in concern.on}
"""By event and moment: the concerns that hear it."""
