"""Metrics that are NaN or infinite: it is said once in each generation, and ends the run where its spec wants so.

A restart does not help: the last checkpoints may hold the same weights, and the same data comes again.
"""

from __future__ import annotations

from orchestrator.core.causes import Cause
from orchestrator.core.ends import FirstCause
from orchestrator.core.notes import NoteKind
from orchestrator.core.phases.stopping import stop_for
from orchestrator.core.state.phase_states import Running
from orchestrator.core.turn import Turn


def advance_nonfinite(turn: Turn) -> None:
    """Say which metric of the chief is no number any more, and since which step."""
    run = turn.run
    odd = run.task(run.chief).progress.nonfinite
    if not odd or run.within(Running).nonfinite_said:
        return
    turn.set_phase(nonfinite_said=True)
    first = sorted((step, name, value) for name, (step, value) in odd.items())
    sentence = ", ".join(f"{name} is {value} since step {step}" for step, name, value in first[:3])
    turn.note(NoteKind.NONFINITE, sentence, run.chief)
    if run.plan.restart.on_nonfinite == "stop":
        stop_for(turn, FirstCause(run.chief, run.generation, Cause.NONFINITE, sentence))
