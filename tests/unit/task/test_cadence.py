"""When to save: the interval, the counting of steps, and that processes with other clocks save at the same steps."""

from __future__ import annotations

import math
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.task.cadence import (
    FIRST_STEPS,
    LONGEST_S,
    SHARE_MAX,
    SHORTEST_S,
    WRITING_SHARE_MAX,
    Cadence,
    Wish,
    interval,
)
from orchestrator.task.loops import Loop
from orchestrator.task.writer import Writer

spans = st.floats(0.0, 1e7)


@given(spans, spans, spans)
def test_an_interval_is_the_cheapest_within_its_limits(
    cost_s: float, failure_s: float, written_s: float
) -> None:
    found = interval(cost_s, failure_s, written_s)
    least = max(cost_s / SHARE_MAX, written_s / WRITING_SHARE_MAX, SHORTEST_S)
    assert found.seconds >= least, "at most 1 % of the time, whatever the failures"
    assert found.seconds <= max(LONGEST_S, least)
    if found.why == "least":
        assert found.seconds == pytest.approx(math.sqrt(2 * cost_s * failure_s))


def test_the_interval_costs_less_than_its_neighbours() -> None:
    cost_s, failure_s = 0.4, 86400.0
    best = interval(cost_s, failure_s).seconds

    def wasted(every_s: float) -> float:
        return cost_s / every_s + every_s / 2 / failure_s

    assert wasted(best) < min(wasted(best * 1.2), wasted(best / 1.2))


class Clock:
    def __init__(self, begin: float = 0.0) -> None:
        self.at = begin

    def __call__(self) -> float:
        return self.at


def train(cadence: Cadence, clock: Clock, steps: int, step_s: float, save_s: float) -> list[int]:
    saves = []
    for step in range(1, steps + 1):
        clock.at += step_s
        if cadence.step():
            clock.at += save_s
            cadence.saved(save_s)
            saves.append(step)
    return saves


def test_the_first_save_tells_the_cost_and_the_next_ones_come_at_the_interval() -> None:
    clock = Clock()
    told: list[Any] = []
    cadence = Cadence(Wish(failure_s=80_000.0), tell=told.append, now=clock)
    saves = train(cadence, clock, 2000, step_s=0.1, save_s=0.01)
    assert saves[0] == FIRST_STEPS
    assert saves[1] - saves[0] == pytest.approx(math.sqrt(2 * 0.01 * 80_000.0) / 0.1, abs=1)
    assert saves[2] - saves[1] == saves[1] - saves[0]
    assert told[-1] == {
        "every_steps": 400,
        "every_s": 40.0,
        "cost_s": 0.01,
        "spent_s": 0.05,
        "failure_s": 80_000.0,
        "why": "least",
    }
    cadence.saved(0.01, step=2000)
    assert told[-1]["saved_step"] == 2000


def test_the_first_step_is_traced_and_says_nothing_of_the_pace() -> None:
    clock = Clock()
    cadence = Cadence(Wish(seconds=60.0), now=clock)
    clock.at = 30.0
    assert not cadence.step()
    assert train(cadence, clock, 1000, step_s=0.1, save_s=0.0)[0] == pytest.approx(600 + FIRST_STEPS, abs=2)


def test_a_number_of_steps_needs_nobodys_agreement() -> None:
    def never(_number: float) -> float:
        raise AssertionError

    clock = Clock()
    assert train(Cadence(Wish(steps=7), never, now=clock), clock, 30, 0.1, 0.1) == [7, 14, 21, 28]


@pytest.mark.parametrize("wish", [{}, {"seconds": 3.0}, {"steps": 9}])
def test_workers_with_clocks_of_their_own_save_at_the_same_steps(wish: dict[str, Any]) -> None:
    """Each has another clock, another pace and another cost; the chief's number counts, and each asks equally often."""
    numbers: dict[int, float] = {}
    barrier, asked = threading.Barrier(3), [0, 0, 0]
    saves: dict[int, list[int]] = {}

    def worker(rank: int) -> None:
        def agree(number: float) -> float:
            asked[rank] += 1
            numbers[rank] = number
            barrier.wait(10)
            told = numbers[0]
            barrier.wait(10)
            return told

        clock = Clock(1000.0 * rank)
        cadence = Cadence(Wish(**wish, failure_s=1000.0), agree, now=clock)
        saves[rank] = train(cadence, clock, 800, step_s=0.05 * (rank + 1), save_s=0.02 * rank)

    threads = [threading.Thread(target=worker, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert saves[0] == saves[1] == saves[2]
    assert len(saves[0]) > 3
    assert asked[0] == asked[1] == asked[2]


def test_a_loop_measures_its_saves_by_the_time_until_it_asks_again() -> None:
    clock = Clock()
    loop, saves = Loop(lambda number: number, clock), []
    for step in range(1, 400):
        clock.at += 0.1
        if loop.ask():
            saves.append(step)
            clock.at += 0.5
    # 84 h between failures are expected without a head node: sqrt(2 * 0.5 * 302400) = 550 s, and 5500 steps.
    assert saves == [FIRST_STEPS]
    assert loop._cadence is not None
    assert loop._cadence._cost_s == pytest.approx(0.5)


def test_what_a_save_raises_is_raised_at_the_next_one() -> None:
    def full() -> None:
        raise OSError(28, "No space left on device")

    writer, done = Writer(), []
    writer.write(full)
    with pytest.raises(OSError, match="No space"):
        writer.write(lambda: done.append(1))
    writer.write(lambda: done.append(2))
    writer.wait()
    assert done == [2]


@pytest.mark.parametrize("text", ["", "nan", "inf", "-3", "x", "0"])
def test_a_wrong_expectation_of_failures_counts_as_none(text: str) -> None:
    assert Wish.read({}, {"ORCH_FAILURE_EVERY_S": text}).failure_s == 84 * 3600


def test_a_script_that_ends_waits_for_its_last_save() -> None:
    """Python ends without those of its threads that are daemons."""
    writer, may_end = Writer(), threading.Event()

    def save() -> None:
        may_end.wait(60)

    writer.write(save)
    (saving,) = (thread for thread in threading.enumerate() if thread.name == "orch-save")
    waits = not saving.daemon
    may_end.set()
    writer.wait()
    assert waits
