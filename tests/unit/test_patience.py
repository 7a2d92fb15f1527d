"""Tests wait longer where the machine is busy, and not for ever."""

from __future__ import annotations

import pytest

from tests import patience


@pytest.mark.parametrize(
    ("loadavg", "share"),
    [
        ("0.00 0.00 0.00 1/200 99", 1.0),
        ("1.90 0.00 0.00 1/200 99", 1.0),
        ("20.00 0.00 0.00 1/200 99", 0.1),
        ("0.10 0.00 0.00 8/200 99", 0.25),
        ("900.0 0.00 0.00 1/200 99", patience.LEAST),
    ],
)
def test_a_share_is_what_each_has_of_a_core(
    monkeypatch: pytest.MonkeyPatch, loadavg: str, share: float
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert patience.share_of(loadavg) == share


def test_a_second_of_a_tenth_of_a_core_counts_as_a_tenth(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1000))
    monkeypatch.setattr("tests.patience.time.monotonic", lambda: float(next(clock)))
    monkeypatch.setattr("tests.patience.time.sleep", lambda _: None)
    monkeypatch.setattr(patience, "share", lambda: 0.1)
    asked: list[int] = []
    assert patience.comes(lambda: asked.append(1), 5.0) is None
    assert len(asked) == 52
    assert patience.comes(lambda: "there", 0.0) == "there"
    assert patience.patient(5.0) == 50.0
