"""The document of the queue: what scripts and people read of a run that waits."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.core.plan import PRIORITIES
from orchestrator.core.state.phase_states import Phase
from orchestrator.reporting.queue_document import queue_document
from tests.unit.core.phases import in_phase
from tests.unit.core.test_queue import run


def test_when_a_run_begins_is_told_where_the_one_before_it_has_a_limit_and_else_not() -> None:
    waits = run("waits", 0, priority="normal", at=20.0)
    told = []
    for limit_s in (600.0, None):
        holder = run("holder", 0, at=10.0, limit_s=limit_s)
        (turn,) = queue_document({"holder": holder, "waits": waits}, 30.0)["queue"]
        assert (turn["run_id"], turn["waited_s"]) == ("waits", 10.0)
        told.append(turn["begins_in_s"])
    assert told == [580.0, None]


def test_a_run_that_looks_for_another_place_is_before_all_others_and_is_shown_with_the_highest_priority() -> (
    None
):
    urgent = run("urgent", 0, priority="high", at=10.0)
    refused = in_phase(urgent, Phase.QUEUED, priority=len(PRIORITIES), since_at=20.0, is_patient=False)
    refused = replace(refused, run_id="refused")
    shown = queue_document({"urgent": urgent, "refused": refused}, 30.0)["queue"]
    assert [(turn["run_id"], turn["priority"]) for turn in shown] == [("refused", "high"), ("urgent", "high")]
