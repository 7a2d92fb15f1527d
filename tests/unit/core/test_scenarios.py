"""Every transcript under scenarios/ says what the core says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.core.transcript import Transcript

SCENARIOS = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))


def test_there_are_scenarios() -> None:
    assert len(SCENARIOS) >= 10


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    expected, actual = Transcript(path).play()
    assert actual == expected
