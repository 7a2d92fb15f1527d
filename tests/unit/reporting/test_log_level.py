"""The level of a line: the same whether a log is read forwards or backwards."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.reporting.log_level import HELD_MAX, LEVELS, Levels, backwards, parse_level

LINES = (
    "Traceback (most recent call last):",
    "  File x",
    "",
    "ValueError: no",
    "step 5",
    "WARNING: old",
    "\tcall()",
)


@given(st.lists(st.sampled_from(LINES), max_size=30))
def test_backwards_is_as_forwards(texts: list[str]) -> None:
    levels = Levels()
    forwards = [(text, levels.level("worker:0", text)) for text in texts]
    assert list(backwards(reversed(texts), str)) == forwards[::-1]


def test_what_is_held_is_bounded() -> None:
    read = 0

    def lines() -> Iterator[str]:
        nonlocal read
        while True:
            read += 1
            yield "  of a table"

    assert next(backwards(lines(), str)) == ("  of a table", "info")
    assert read == HELD_MAX + 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-11-20 12:00:00.123456: E tensorflow/core/x.cc:7] no", "error"),
        ("W0000 00:00:1763 slow.cc:9] slow", "warning"),
        ("I1120 12:00:00.1 main.py:3] fine", "info"),
        ("DEBUG:root:x", "debug"),
        ("[WARNING] old", "warning"),
        ("CRITICAL: no", "error"),
        ("keras.errors.NotFoundError: no", "error"),
        ("KeyboardInterrupt", "error"),
        ("train.py:3: UserWarning: old", "warning"),
        ("the error is 0.3", "info"),
    ],
)
def test_the_forms_in_which_a_line_says_its_level(text: str, expected: str) -> None:
    assert Levels().level("worker:0", text) == expected


def test_a_level_is_known_by_its_name() -> None:
    assert [parse_level(level) for level in LEVELS] == list(LEVELS)
    with pytest.raises(ValueError, match="'loud' is none of the levels"):
        parse_level("loud")
