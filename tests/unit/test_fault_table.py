"""The table of faults is whole: no row has lost its test, and the page is what the results make of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.faults import page
from tests.faults.__main__ import PAGE, RESULTS, summed_up
from tests.faults.rows import LAST, Row, load, marked


def test_every_row_is_there_once_and_in_order() -> None:
    assert [row.number for row in load()] == list(range(1, LAST + 1))


@pytest.mark.parametrize("row", load(), ids=lambda row: str(row.number))
def test_a_row_has_a_test_or_says_that_it_has_none(row: Row) -> None:
    tests = marked().get(row.number, [])
    assert bool(tests) != bool(row.missing), f"row {row.number}: tests {tests}, missing {row.missing!r}"


def test_no_test_proves_a_row_that_is_not() -> None:
    assert set(marked()) <= {row.number for row in load()}


def test_the_page_is_what_the_results_make_of_it() -> None:
    written = page.render(load(), json.loads(RESULTS.read_text()))
    assert PAGE.read_text() == written, "`python -m tests.faults --page` writes it"


def test_the_slowest_of_a_rows_tests_counts_and_the_worst_outcome() -> None:
    outcomes: dict[str, dict[str, Any]] = {
        "a[1]": {"rows": [1, 2], "outcome": "passed", "measured": {"noticed_s": 0.5, "steps_lost": 3}},
        "a[2]": {"rows": [1, 2], "outcome": "skipped"},
        "b": {"rows": [1], "outcome": "failed", "measured": {"noticed_s": 0.2, "again_s": 4.0}},
    }
    found = summed_up(outcomes, [1, 2, 3], {"commit": "abc"})
    assert found["1"] == {
        "commit": "abc",
        "tests": {"a": "passed", "b": "failed"},
        "noticed_s": 0.5,
        "again_s": 4.0,
        "steps_lost": 3,
    }
    first, second, third = load()[:3]
    assert page.outcome_of(first, found["1"]) == "failed"
    assert page.outcome_of(second, found["2"]) == "passed"
    assert page.outcome_of(third, found.get("3")) == "unmeasured"
