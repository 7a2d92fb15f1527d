"""What a failure costs: the time from it to the first new step, and where that time went.

It begins with the first end of a generation that trained, and ends with the chief's first step beyond what was resumed
from. Generations that fail in between belong to the same downtime. It is followed wherever the run enters a phase.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from orchestrator.core.instants import Instant
from orchestrator.core.phase_states import Phase
from orchestrator.core.words import counted, duration


@dataclass(frozen=True, slots=True)
class Downtime:
    """When what happened since training ended."""

    failed_at: Instant
    """By the host's clock, carried over, where a task has ended; else when its host was last heard."""
    noticed_at: Instant
    step: int | None
    """The highest that was reached since the restart before."""
    steps_per_s: float | None
    """The chief's last pace."""
    ended_at: Instant | None = None
    """When no task of the generation could live any more."""
    started_at: Instant | None = None
    """When the newest generation was ordered to start."""
    released_at: Instant | None = None
    """When all its tasks had joined, and the checkpoint was in place."""

    def entering(self, phase: Phase, at: Instant) -> Downtime | None:
        """Return it as it is once the run enters that phase; None where the run ends."""
        match phase:
            case Phase.BACKOFF:
                return replace(self, ended_at=self.ended_at if self.ended_at is not None else at)
            case Phase.RENDEZVOUS:
                return replace(self, started_at=at)
            case Phase.RUNNING:
                return replace(self, released_at=at)
            case Phase.STOPPING:
                return self
        return None

    def parts(self, stepped_at: Instant) -> dict[str, float]:
        """Return the seconds of each part, in order: they add up to the whole.

        >>> parts = Downtime(10.0, 10.5, 120, 2.0, ended_at=11.0, started_at=11.0, released_at=15.0).parts(18.0)
        >>> list(parts.values())
        [0.5, 0.5, 0.0, 4.0, 3.0]
        """
        ended_at = self.ended_at if self.ended_at is not None else self.noticed_at
        started_at = self.started_at if self.started_at is not None else ended_at
        released_at = self.released_at if self.released_at is not None else started_at
        instants = [self.failed_at, self.noticed_at, ended_at, started_at, released_at, stepped_at]
        names = ("detected_s", "ended_s", "waited_s", "started_s", "first_step_s")
        # Two clocks take part, the host's and ours: no part is negative.
        spans = [max(0.0, later - earlier) for earlier, later in pairwise(instants)]
        return {name: round(span, 3) for name, span in zip(names, spans, strict=True)}

    def lost_steps(self, resumed_from: int | None) -> int | None:
        """Return how many steps are trained a second time; None where that cannot be told."""
        return None if self.step is None else max(0, self.step - (resumed_from or 0))

    def as_data(self, stepped_at: Instant, resumed_from: int | None) -> dict[str, float | int | None]:
        """Return all of it, as events and `orch why --json` carry it: seconds, and steps."""
        parts, steps = self.parts(stepped_at), self.lost_steps(resumed_from)
        lost_s = round(steps / self.steps_per_s, 3) if steps is not None and self.steps_per_s else None
        return {"total_s": round(sum(parts.values()), 3), **parts, "steps_lost": steps, "lost_s": lost_s}


def sentence(told: dict[str, float | int | None]) -> str:
    """Say where the time went.

    >>> told = Downtime(10.0, 10.5, 120, 2.0, 11.0, 11.0, 15.0).as_data(18.0, 100)
    >>> sentence(told)
    '8 s: detected in 0.5 s, ended in 0.5 s, started in 4 s, first new step in 3 s; 20 steps (10 s) are trained again'
    """
    said = [
        f"{name} in {duration(told[key] or 0.0)}"
        for key, name in (
            ("detected_s", "detected"),
            ("ended_s", "ended"),
            ("started_s", "started"),
            ("first_step_s", "first new step"),
        )
    ]
    if (told["waited_s"] or 0.0) >= 0.05:
        said.insert(2, f"waited {duration(told['waited_s'] or 0.0)}")
    text = f"{duration(told['total_s'] or 0.0)}: {', '.join(said)}"
    steps, lost_s = told["steps_lost"], told["lost_s"]
    if not steps:
        return text
    worth = f" ({duration(lost_s)})" if lost_s is not None else ""
    verb = "is" if steps == 1 else "are"
    return f"{text}; {counted(int(steps), 'step')}{worth} {verb} trained again"
