from __future__ import annotations

import pytest

from orchestrator.spec.durations import as_written, parse_duration


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("5s", 5),
        ("1.5m", 90),
        ("2h", 7200),
        ("250ms", 0.25),
        ("1d", 86400),
        ("7", 7),
        (3, 3),
        (0.5, 0.5),
        ("5 s", 5),
    ],
)
def test_durations_people_write(written: object, seconds: float) -> None:
    assert parse_duration(written) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "written",
    [
        "",
        "s",
        "5x",
        "-5s",
        "1m30s",
        "٣s",
        "5s\n",
        "1e3s",
        "9" * 13,
        True,
        None,
        -1,
        float("inf"),
        float("nan"),
        [5],
    ],
)
def test_what_is_no_duration(written: object) -> None:
    with pytest.raises(ValueError, match=r"^must be a duration: a number with ms, s, m, h or d, such as"):
        parse_duration(written)


@pytest.mark.parametrize("text", ["0s", "5s", "90s", "5m", "2h", "250ms", "1.5s"])
def test_what_is_shown_reads_back_as_itself(text: str) -> None:
    assert as_written(parse_duration(text)) == text
