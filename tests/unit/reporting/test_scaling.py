"""The table and the verdict of `orch scale`, from measured figures."""

from __future__ import annotations

import pytest

from orchestrator.reporting.scaling import Measured, measured_of, table, verdict


def size(replicas: int, step_s: float, **more: object) -> Measured:
    return Measured(replicas, step_s, step_s, step_s, **more)  # type: ignore[arg-type]


def test_a_batch_that_grows_with_the_replicas_counts_as_more_work() -> None:
    rows = table([size(4, 0.12, batch=256), size(1, 0.10, batch=64)])
    assert [row.replicas for row in rows] == [1, 4]
    assert rows[1].examples_per_s == pytest.approx(256 / 0.12)
    assert rows[1].speedup == pytest.approx(4 * 0.10 / 0.12)
    assert rows[1].efficiency == pytest.approx(0.10 / 0.12)


def test_without_a_batch_epochs_are_compared_and_without_those_steps() -> None:
    epochs = table([size(1, 0.10, steps_per_epoch=100), size(2, 0.10, steps_per_epoch=50)])
    assert epochs[1].epoch_s == pytest.approx(5.0)
    assert epochs[1].speedup == pytest.approx(2.0)
    steps = table([size(1, 0.10), size(2, 0.05)])
    assert steps[1].speedup == pytest.approx(2.0)
    assert steps[1].examples_per_s is None


def test_input_is_what_a_step_takes_less_with_its_batch_in_memory() -> None:
    (row,) = table([size(1, 0.10, batch=64, input_free_s=0.06)])
    assert row.input_share == pytest.approx(0.4)
    assert row.communication_share == 0.0


def test_communication_is_what_a_step_takes_more_than_its_part_of_the_computation() -> None:
    rows = table([size(1, 0.10, batch=64, input_free_s=0.10), size(2, 0.08, batch=64, input_free_s=0.08)])
    assert rows[1].communication_share == pytest.approx(0.03 / 0.08)


def test_losses_are_compared_after_equal_examples() -> None:
    rows = table(
        [
            size(1, 0.1, batch=10, losses=((10, 4.0), (20, 2.0), (30, 1.0))),
            size(2, 0.1, batch=20, losses=((5, 5.0), (10, 3.0), (20, 0.5))),
        ]
    )
    assert [row.loss for row in rows] == [1.0, pytest.approx(3.0 - 2.5 * 5 / 10)]


def test_the_verdict_names_the_size_the_limit_and_the_remedy() -> None:
    rows = table(
        [
            size(1, 0.10, batch=64, input_free_s=0.10),
            size(2, 0.055, batch=64, input_free_s=0.055),
            size(8, 0.04, batch=64, input_free_s=0.025),
        ]
    )
    said = verdict(rows)
    assert said.startswith("worth it up to 2 replicas: 1.8 times as fast as 1")
    assert (
        "at 8, 31% of a step is communication and waiting for the slowest: raise the batch from 64 to 128"
        in said
    )
    assert "at 8, 38% of a step waits for input: cache()" in said


def test_the_remedy_for_input_is_shown_above_a_fifth_of_a_step() -> None:
    fifth, more = (
        verdict(table([size(1, 10.0, input_free_s=10.0), size(2, 5.0, input_free_s=free_s)]))
        for free_s in (4.0, 3.9)
    )
    assert "waits for input" not in fifth
    assert "at 2, 22% of a step waits for input: cache()" in more


def test_a_size_that_loses_is_not_recommended() -> None:
    assert verdict(table([size(1, 0.1), size(2, 0.2)])).startswith(
        "stay at 1 replica: 2 are 0.5 times as fast"
    )
    assert verdict(table([size(1, 0.1), size(2, 0.05)])).startswith(
        "worth it up to 2 replicas, the most that was"
    )
    assert "one size alone" in verdict(table([size(1, 0.1)]))


def test_what_a_task_reported_is_read_and_what_is_odd_is_left_out() -> None:
    found = measured_of(2, {"step_s": 0.1, "batch": 64.0, "loss@20": 1.0, "loss@10": 2.0, "loss@x": 3.0})
    assert found == Measured(2, 0.1, 0.1, 0.1, batch=64, losses=((10, 2.0), (20, 1.0)))
    assert measured_of(2, {"steps": 3.0}) is None
