"""Halted runs, whose decisions a bug in orch has stopped, and the last decisions about each run."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass

from orchestrator.core.errors import DecisionsStopped
from orchestrator.core.events import Event
from orchestrator.core.in_words import InWords, event_in_words
from orchestrator.core.state.instants import Instant
from orchestrator.core.state.run import Run

STORY_MAX = 20
"""How many decisions about a run are remembered. The journal has them all."""

_LINE_MAX = 600


@dataclass(frozen=True, slots=True)
class Halt:
    """Why and since when decisions about a run are stopped."""

    error: str
    story: tuple[str, ...]
    """The last decisions, oldest first, and the error that the next event raised."""
    since_at: Instant

    def sentence(self, run: Run) -> str:
        """Return the sentence for the run's status and events."""
        return (
            f"nothing is decided about {run.run_id} any more, because of a bug in orch ({self.error}); its tasks keep "
            f"training; {_way_out(run)}"
        )

    def refusal(self, run: Run) -> DecisionsStopped:
        """Return the error for a command about the run."""
        return DecisionsStopped(
            f"nothing is decided about {run.run_id} any more, because of a bug in orch: {self.error}",
            hint=_way_out(run),
        )


def _way_out(run: Run) -> str:
    return (
        "`orch coordinator restart` tries again from its last sound state, "
        f"`orch kill {run.plan.name} --force` ends it, `orch replay {run.run_id}` shows what led to it"
    )


class Stories:
    """The last decisions about each run, in words."""

    def __init__(self) -> None:
        self._lines: dict[str, deque[str]] = {}

    def add(self, run_id: str, event: Event, decision: InWords) -> None:
        """Remember a decision. Only the newest STORY_MAX are kept."""
        outcome = "; ".join((decision.phase, *decision.orders, *decision.notes))
        lines = self._lines.setdefault(run_id, deque(maxlen=STORY_MAX))
        lines.append(f"at {event.at:.3f}: {event_in_words(event)}: {outcome}"[:_LINE_MAX])

    def halt(self, run_id: str, event: Event, error: Exception) -> Halt:
        """Return the halt of a run. Its story ends with the event that could not be decided."""
        error_text = f"{type(error).__name__}: {error}"
        last = f"at {event.at:.3f}: {event_in_words(event)}: {error_text}"[:_LINE_MAX]
        return Halt(error=error_text, story=(*self._lines.get(run_id, ()), last), since_at=event.at)

    def forget(self, run_ids: Collection[str]) -> None:
        """Drop the stories of ended runs."""
        for run_id in run_ids:
            self._lines.pop(run_id, None)
