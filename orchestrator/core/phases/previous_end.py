"""The end of the generation before: what a phase of the next one has to say about it."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.core.diagnosis import cause
from orchestrator.core.turn import Turn


def say_done(turn: Turn, sentence: str) -> dict[str, object]:
    """Record what was done about it: in the state, and in the data of an event, which are returned."""
    found = turn.run.first_cause
    if found is None or found.generation >= turn.run.generation:
        return {}
    found = replace(found, done="; ".join(filter(None, (found.rescued, sentence))))
    turn.set(first_cause=found)
    return {"first_cause": cause.as_data(found)}
