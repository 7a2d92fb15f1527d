"""The headline of docs/faults.md: from the death of a task to the first new step, over a start by hand."""

from __future__ import annotations

import pytest

from benchmarks import comeback
from tests.faults.times import FaultTimes

pytestmark = [pytest.mark.lab, pytest.mark.tensorflow, pytest.mark.long, pytest.mark.timeout(600)]


@pytest.mark.fault(15)
def test_what_orch_adds_to_a_bare_start_is_little(fault_times: FaultTimes) -> None:
    starts = comeback.Starts()
    comeback.take_turns(starts, workers=2, repeats=5, warm=False)
    under_orch, by_hand = ([start.total_s for start in each] for each in (starts.cold, starts.cold_hand))
    fault_times.over_by_hand(under_orch, by_hand)
    assert fault_times.measured["over_by_hand_s"] < 5.0, "on a busy machine too"
