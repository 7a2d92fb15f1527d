"""All agents report at the same time of day, whenever they began."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.host.agent.main import next_heartbeat_s

HEARTBEATS = st.floats(0.05, 60.0)
TIMES = st.floats(0.0, 4e9)


@given(HEARTBEATS, TIMES)
def test_it_is_half_a_heartbeat_at_least_and_one_and_a_half_at_most(
    heartbeat_s: float, wall_s: float
) -> None:
    assert heartbeat_s / 2 <= next_heartbeat_s(heartbeat_s, wall_s) <= 1.5 * heartbeat_s


@pytest.mark.parametrize("wall_s", [1000.0, 1000.3, 1000.9, 1001.1, 1001.999])
def test_whoever_begins_within_a_heartbeat_reports_at_the_same_times(wall_s: float) -> None:
    assert (wall_s + next_heartbeat_s(2.0, wall_s)) % 2.0 == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("wall_s", "expected_s"), [(999.999, 2.001), (1000.001, 1.999), (1001.0, 1.0), (1001.1, 2.9)]
)
def test_a_timer_that_is_a_little_early_or_late_makes_no_heartbeat_twice(
    wall_s: float, expected_s: float
) -> None:
    assert next_heartbeat_s(2.0, wall_s) == pytest.approx(expected_s)
