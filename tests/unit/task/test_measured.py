"""The clock of `orch scale`: which steps count, and which time."""

from __future__ import annotations

import pytest

from orchestrator.task.trials.measured import Course


class Clock:
    def __init__(self) -> None:
        self.at = 100.0

    def __call__(self) -> float:
        return self.at


def test_the_warm_up_does_not_count_and_the_rest_is_cut_into_blocks() -> None:
    clock = Clock()
    course = Course(steps=10, warmup=3, now=clock)
    for step in range(13):
        clock.at += 5.0 if step < 3 else 0.1
        assert not course.is_over
        course.advance(1, {"loss": 13 - step})
    assert course.is_over
    assert course.paces == pytest.approx([0.1] * 5)
    assert course.losses[0] == (3, 11.0)
    assert course.losses[-1] == (13, 1.0)
    assert course.figures()["step_s"] == pytest.approx(0.1)


def test_what_happens_between_two_epochs_does_not_count() -> None:
    clock = Clock()
    course = Course(steps=10, warmup=1, now=clock)
    for _ in range(5):
        clock.at += 0.1
        course.advance(1, None)
    clock.at += 60.0  # a validation
    course.pause()
    course.pause()
    clock.at += 60.0
    course.resume()
    for _ in range(6):
        clock.at += 0.1
        course.advance(1, None)
    assert course.paces == pytest.approx([0.1] * 5)


def test_steps_that_come_several_at_a_time_count_as_many() -> None:
    clock = Clock()
    course = Course(steps=40, warmup=10, now=clock)
    while not course.is_over:
        clock.at += 1.0
        course.advance(10, {})
    assert course.step == 60
    assert course.paces == pytest.approx([0.1] * 5)
    assert course.figures().get("loss@10") is None
