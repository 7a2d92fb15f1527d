"""The times that people give."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from orchestrator.cli.show.times import parse_since
from orchestrator.core.errors import UsageError

NOW = datetime(2026, 11, 26, 10, 30, tzinfo=timezone.utc).timestamp()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5m", "2026-11-26T10:25:00"),
        ("03:17", "2026-11-26T03:17:00"),
        ("11:00", "2026-11-25T11:00:00"),
        ("today", "2026-11-26T00:00:00"),
        ("yesterday", "2026-11-25T00:00:00"),
        ("2026-11-20T12:00:00", "2026-11-20T12:00:00"),
    ],
)
def test_since_when(text: str, expected: str) -> None:
    assert parse_since(text, NOW, utc=True) == datetime.fromisoformat(f"{expected}+00:00").timestamp()


def test_yesterday_is_that_of_the_persons_own_zone() -> None:
    midnight = datetime.fromtimestamp(parse_since("yesterday", NOW))
    assert (midnight.hour, midnight.minute) == (0, 0)


def test_what_is_no_time_is_refused_with_examples() -> None:
    with pytest.raises(UsageError) as caught:
        parse_since("tomorrow", NOW)
    assert "yesterday" in str(caught.value.hint)
