"""What a run has seen of failures, from which how often to save follows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.core.causes import Cause
from orchestrator.core.ends import FirstCause
from orchestrator.core.phases.stopping import stop_all
from orchestrator.core.state.phase_states import Intent, Phase
from orchestrator.core.state.run import Run, new_run
from orchestrator.core.turn import Turn
from tests.unit.core.phases import state_of
from tests.unit.core.transcript import Transcript, make_plan


def ended(run: Run, cause: Cause, at: float) -> Run:
    turn = Turn(replace(run, first_cause=FirstCause(None, run.generation, cause, "x")), at)
    stop_all(turn, Intent.RESTART, "x")
    return turn.run


def test_a_run_counts_its_failures_and_the_time_that_it_trained() -> None:
    run = new_run("t-20260101-000000", make_plan(["a", "b"], checkpoint=True), epoch=1, at=0.0)
    running = replace(
        run, phase_state=state_of(Phase.RUNNING, progress_at=100.0), since_at=100.0, generation=1
    )
    once = ended(running, Cause.SIGNAL, 160.0)
    assert (once.trained_s, once.failures) == (60.0, 1)
    again = replace(once, phase_state=running.phase_state, since_at=200.0, generation=2)
    assert (
        ended(again, Cause.HOST_LOST, 210.0).trained_s,
        ended(again, Cause.HOST_LOST, 210.0).failures,
    ) == (70.0, 2)
    assert ended(again, Cause.ROLLED_BACK, 210.0).failures == 1, "nobody's fault is no failure"


@pytest.mark.parametrize(("name", "counts"), [("rescued", (2, 2)), ("rescue_fails", (3, 0))])
def test_failures_after_which_a_survivor_handed_over_are_counted_apart(
    name: str, counts: tuple[int, int]
) -> None:
    transcript = Transcript(Path(__file__).parent / "scenarios" / f"{name}.txt")
    transcript.play()
    assert transcript.run is not None
    assert (transcript.run.failures, transcript.run.rescued) == counts


def test_a_start_that_fails_says_nothing_of_how_long_it_trains() -> None:
    run = new_run("t-20260101-000000", make_plan(["a", "b"], checkpoint=True), epoch=1, at=0.0)
    starting = replace(
        run, phase_state=state_of(Phase.RENDEZVOUS, deadline_at=100.0), since_at=10.0, generation=1
    )
    found = ended(starting, Cause.START, 50.0)
    assert (found.trained_s, found.failures) == (0.0, 0)
