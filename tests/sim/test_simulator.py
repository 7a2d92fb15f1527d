"""A small, fixed part of the simulation. `make sim` runs more seeds; `make mutants` proves that it finds mistakes."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.sim.__main__ import play
from tests.sim.mutants import MUTANTS, ROOT, hunt


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Silence the logs of the many coordinators that die here."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("seed", range(14))
def test_no_rule_is_broken(seed: int) -> None:
    result = play(seed)
    assert result.check is None, f"make sim SEEDS=1 SEED={seed}: {result.sentence}\n" + "\n".join(result.last)


def test_a_seed_is_the_same_world_each_time() -> None:
    first, again = play(3), play(3)
    assert (first.hours, first.turns, first.end) == (again.hours, again.turns, again.end)
    assert first.last == again.last


def test_faults_happen() -> None:
    """A simulator in which nothing happens would always pass."""
    assert sum(play(seed, kind="chaos").faults for seed in range(3)) > 5


def test_a_mistake_is_found() -> None:
    (mutant,) = (each for each in MUTANTS if each.name.startswith("adoption without identity"))
    assert "foreign-pid" in hunt(mutant).by


def test_every_mistake_can_still_be_made() -> None:
    """A mutant whose text has changed proves nothing."""
    for mutant in MUTANTS:
        text = (ROOT / "orchestrator" / mutant.file).read_text(encoding="utf-8")
        assert text.count(mutant.old) == 1, f"{mutant.name}: {mutant.file} reads otherwise now"
