"""The requests of a person to a running run, apart from a kill: drain a host, and roll back to a checkpoint.

They do what `Coordinator` does. If the coordinator dies or its disk is full, a person gets an error and does not ask
again: a request without an acknowledgement may or may not have been done.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from orchestrator.core.errors import JournalError
from orchestrator.core.events import DrainRequested, Event, RolledBack, UndrainRequested
from orchestrator.core.hosts import slots
from tests.sim.share import Share

if TYPE_CHECKING:
    from tests.sim.run import SimRun
    from tests.sim.world import World

AGAIN_S = 10.0
"""The delay before a request is repeated that must succeed in the end."""


def drain(world: World, _lasts_s: float) -> Callable[[], None] | None:
    """Drain a host if the run can do without it, and return the undrain."""
    side = _one_of(world)
    run = side.now
    if run is None or run.phase.is_terminal:
        return None
    host = world.chance.choice(run.hosts).name
    if slots.why_not_drained(run, host) is not None:
        return None
    at_once = world.chance.random() < 0.5
    if _ask(side, lambda at: DrainRequested(at=at, host=host, now=at_once)):
        side.checks.drained.add(host)
    return lambda: _undrain(side, host)


def _one_of(world: World) -> SimRun:
    return world.chance.choice([run for run in world.runs.values() if run.kind == "chaos"])


def _undrain(side: SimRun, host: str) -> None:
    """Undrain a host, and repeat until it is acknowledged: otherwise the run may lack a host for ever."""
    side.checks.drained.discard(host)
    run = side.now
    if run is not None and run.phase.is_terminal:
        return
    if not _ask(side, lambda at: UndrainRequested(at=at, host=host)):
        side.world.heap.after(AGAIN_S, lambda: _undrain(side, host))


def go_back(world: World, _lasts_s: float) -> None:
    """Roll back to one of the checkpoints that read whole. The mark in the directory comes before the event."""
    side = _one_of(world)
    if not isinstance(side.share, Share):
        return  # see NOT_PLAYED in agent.py
    run, saves = side.now, side.share.whole_ones()
    if run is None or run.phase.is_terminal or not saves:
        return
    generation, saved = world.chance.choice(saves)
    path = side.share.path(generation, saved.step)
    aside = side.share.go_back(generation, saved)
    side.checks.goes_back(path)

    def event(at: float) -> Event:
        return RolledBack(
            at=at, generation=generation, global_step=saved.step, path=path, set_aside=tuple(aside)
        )

    head = world.head

    def tell() -> None:
        now = side.now
        if world.head is head and now is not None and not now.phase.is_terminal and _ask(side, event):
            side.checks.went_back(now.generation)

    world.heap.after(world.chance.uniform(0.0, 5.0), tell)


def _ask(side: SimRun, event: Callable[[float], Event]) -> bool:
    """Send a request, and return whether the coordinator has acknowledged it."""
    world, run = side.world, side.now
    head = world.head
    if head is None or run is None:
        return False
    asked = event(head.clock())
    world.say(f"** the user asks: {asked}")
    try:
        return world.guarded(head, lambda: head.loop.decide(run.run_id, asked))
    except JournalError:
        return False
