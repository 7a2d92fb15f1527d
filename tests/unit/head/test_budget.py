"""The budget of records: what is over it is said, and a value that is no number stops nobody."""

from __future__ import annotations

import pytest

from orchestrator.head.records import budget


@pytest.mark.parametrize(
    ("allowed", "taken", "said"),
    [
        ("", 20 << 30, None),
        ("", (20 << 30) + 1, "the records of all runs take 20 GiB, more than $ORCH_RECORDS_GB (20 GiB)"),
        ("0.5", 600 << 20, "more than $ORCH_RECORDS_GB (512 MiB); `orch runs` lists them"),
        ("nan", 600 << 20, None),
        ("inf", 600 << 20, None),
        ("much", 0, "$ORCH_RECORDS_GB is not a number: 'much'"),
    ],
)
def test_what_is_over_the_budget_is_said(
    monkeypatch: pytest.MonkeyPatch, allowed: str, taken: int, said: str | None
) -> None:
    monkeypatch.setenv(budget.VARIABLE, allowed)
    found = budget.warning(taken)
    assert said in found if said is not None and found is not None else found is said
