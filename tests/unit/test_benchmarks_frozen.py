"""A frozen host must be given up neither too late nor too early."""

from __future__ import annotations

import pytest

from benchmarks.frozen import HEARTBEAT_S, figures


@pytest.mark.parametrize(
    ("late", "verdicts"),
    [
        ((0.1, 0.2, 0.3), ["ok", "ok"]),
        ((-HEARTBEAT_S, 0.2, 0.3), ["ok", "ok"]),
        ((1.5, 1.5, 0.3), ["MISSED", "ok"]),
        ((-HEARTBEAT_S - 0.01, 0.2, 0.3), ["ok", "MISSED"]),
    ],
)
def test_one_that_is_given_up_too_early_is_a_miss(late: tuple[float, ...], verdicts: list[str]) -> None:
    assert [figure.verdict for figure in figures(late)] == verdicts
