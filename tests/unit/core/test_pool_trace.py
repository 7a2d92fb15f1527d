"""Drawn traces are replayed: no GPU twice, nobody starves, and the first waits only for what is not free."""

from __future__ import annotations

from statistics import mean

import pytest

from tests.pool_trace import PAGE, as_it_is, best_fit, draw, first_come, replay


@pytest.mark.parametrize("seed", range(2))
def test_all_begin_and_with_backfill_sooner_than_without(seed: int) -> None:
    jobs = draw(seed, 80, hosts=3, load=1.2)
    ours, plain, greedy = (replay(jobs, 3, way) for way in (as_it_is, first_come, best_fit))
    assert len(ours.waited_s) == len(plain.waited_s) == len(greedy.waited_s) == 80
    assert mean(ours.waited_s) < mean(plain.waited_s)
    assert ours.used >= plain.used


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_ten_thousand_runs_begin_on_a_pool_that_is_always_full() -> None:
    jobs = draw(7, 10_000, hosts=24, load=1.1)
    assert len(replay(jobs, 24, as_it_is).waited_s) == 10_000


def test_the_page_has_the_table() -> None:
    assert "| orch: first come, first served, with backfill |" in PAGE.read_text(encoding="utf-8")
