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


def test_what_was_handed_over_is_kept_from_the_seed_once_the_training_has_failed_behind_it() -> None:
    played = Transcript(next(path for path in SCENARIOS if path.stem == "rescued_and_fails_for_good"))
    played.play()
    assert played.run is not None
    assert (played.run.generation, played.run.step_max) == (3, 39)


def test_what_is_handed_over_is_known_by_its_step_also_where_the_generation_began_behind_the_start() -> None:
    """Generation 3 began at step 20 and handed over step 60: 40 steps, but it is step 60 that may be passed over."""
    played = Transcript(next(path for path in SCENARIOS if path.stem == "rescued_and_fails_a_step_later"))
    played.play()
    assert played.run is not None
    assert (played.run.generation, played.run.budget.handed_over) == (4, 60)
