"""Rows of a metric's values that are joined."""

from __future__ import annotations

from orchestrator.both import stretches


def test_the_lowest_and_the_highest_value_stay_with_their_steps_in_whichever_row_they_were() -> None:
    first: stretches.Row = [10, 19, 10, 50.0, 5.0, 3.0, 12, 7.0, 13, 5.5]
    second: stretches.Row = [20, 29, 10, 60.0, 6.0, 2.0, 22, 9.0, 23, 6.5]
    assert stretches.joined(first, second) == [10, 29, 20, 110.0, 5.0, 2.0, 22, 9.0, 23, 6.5]
    lower: stretches.Row = [20, 29, 10, 40.0, 4.0, 3.5, 22, 6.0, 23, 4.5]
    assert stretches.joined(first, lower) == [10, 29, 20, 90.0, 5.0, 3.0, 12, 7.0, 13, 4.5]
    assert stretches.joined([1, 5.0], [2, 2.0]) == [1, 2, 2, 7.0, 5.0, 2.0, 2, 5.0, 1, 2.0]
