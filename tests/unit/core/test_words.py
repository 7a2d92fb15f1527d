"""Times, amounts, paces and counts, as every sentence and table has them."""

from __future__ import annotations

import pytest

from orchestrator.core import words


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1.0, "0 s"),
        (0.44, "0.4 s"),
        (4.0, "4 s"),
        (9.96, "10 s"),
        (59.6, "1 min"),
        (185, "3 min 5 s"),
        (7500, "2 h 5 min"),
        (86400 * 3 + 3600 * 4, "3 d 4 h"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert words.duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (900, "900 B"), (1 << 20, "1.0 MiB"), (812 << 20, "812 MiB")]
)
def test_sizes(count: int, text: str) -> None:
    assert words.size(count) == text


@pytest.mark.parametrize(("steps", "text"), [(0.0421, "0.042"), (3.44, "3.4"), (34.4, "34"), (1234, "1234")])
def test_paces(steps: float, text: str) -> None:
    assert words.pace(steps) == text
