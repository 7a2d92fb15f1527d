"""Chooses the number of the next generation."""

from __future__ import annotations

from orchestrator.core.launching.environment import GENERATION_REPORTED_MAX, have_ports_apart
from orchestrator.core.state.run import Run


def highest_reported(run: Run) -> int:
    """Return the highest credible generation whose directory a host reports; 0 if there is none."""
    generations = (host.facts.highest_generation for host in run.hosts if host.facts)
    return max((generation for generation in generations if generation <= GENERATION_REPORTED_MAX), default=0)


def next_generation(run: Run) -> int:
    """Return a number above all that were given out, and all of which any host has a directory.

    Spares count too, and so do hosts that were prepared late: if nothing is shared, the next chief may find old
    directories of another run on such a host. Numbers whose ports are those of the present generation are skipped, so
    that a stale process cannot join the new gang; the number between the two may have gone to a standby that was never
    released.
    """
    generation = max(run.generation_last, highest_reported(run)) + 1
    while run.generation and not have_ports_apart(run.plan, run.generation, generation):
        generation += 1
    return generation
