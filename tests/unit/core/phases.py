"""Runs in a phase of the test's choice, without the way there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from orchestrator.core.state.phase_states import (
    Backoff,
    Ended,
    Intent,
    Pending,
    Phase,
    PhaseState,
    Queued,
    Rendezvous,
    Running,
    Stopping,
)
from orchestrator.core.state.run import Run


def state_of(phase: Phase, **own: Any) -> PhaseState:
    """Return the state of a phase, with the usual values except `own`."""
    match phase:
        case Phase.QUEUED:
            return Queued(**{"since_at": 0.0, **own})
        case Phase.PENDING:
            return Pending(**own)
        case Phase.RENDEZVOUS:
            return Rendezvous(**{"deadline_at": 300.0, **own})
        case Phase.RUNNING:
            return Running(**{"progress_at": 0.0, **own})
        case Phase.STOPPING:
            return Stopping(**{"intent": Intent.RESTART, "deadline_at": 60.0, **own})
        case Phase.BACKOFF:
            return Backoff(**{"start_at": None, **own})
        case Phase.SUCCEEDED | Phase.FAILED | Phase.KILLED:
            return Ended(phase=phase, **own)


def in_phase(run: Run, phase: Phase, **own: Any) -> Run:
    """Return the run in that phase."""
    return replace(run, phase_state=state_of(phase, **own))
