"""The restart budget of a run, or of a task that is restarted alone. How it is spent: `phases.restart`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Budget:
    """How often the run came back, and how often without progress."""

    restarts: int = 0
    without_progress: int = 0
    """Restarts in a row, for the script's own fault, with no newer verified checkpoint."""
    in_a_row: int = 0
    """Restarts in a row without a newer checkpoint, whoever is to blame: sets the wait."""
    step: int | None = None
    """The verified step at the last restart; a newer one clears the counts."""
    failure: str | None = None
    """How the last generation failed, where that would happen again (`cause.failure`)."""
    failed_step: int | None = None
    """At which step it failed so; None if no step was told."""
    handed_over: int | None = None
    """The first step that a survivor has handed over since a generation last saved a checkpoint; None if none has."""
    passed_over: int | None = None
    """What was handed over is not used from this step on, since the training failed behind it in the same way."""
