"""The verdict of `orch prove`, from two records."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from orchestrator.reporting.comparison import Incomparable, Record, Step, Weight, compare, rows

WEIGHTS = (Weight("dense/kernel", 3, True), Weight("bn/moving_mean", 1, False))
BEGIN = ((1.0, 1.0, 1.0), (0.0,))


def step(number: int, *, off: float = 0.0, loss: float | None = None, **more: object) -> Step:
    """Return a step that moves each weight by 0.1; the first one is off by something."""
    moved = 1.0 - 0.1 * number
    plain = Step(
        loss=1.0 / number if loss is None else loss,
        examples=32,
        fingerprint=(5.0 * number, 7.0, 9.0),
        weights=((moved + off, moved, moved), (0.5 * number,)),
    )
    return replace(plain, **more)  # type: ignore[arg-type]


def record(*steps: Step, replicas: int = 1, **more: object) -> Record:
    return replace(Record(replicas, WEIGHTS, BEGIN, steps), **more)  # type: ignore[arg-type]


ALONE = record(step(1), step(2), step(3))


def test_the_order_of_sums_is_no_difference() -> None:
    verdict = compare(ALONE, record(step(1), step(2, off=1e-7), step(3, loss=1 / 3 + 1e-6), replicas=2))
    assert verdict.equal
    assert verdict.sentence == (
        "equal: 2 replicas trained the same 3 steps as one process, up to the order of sums"
    )
    assert verdict.loss is not None
    assert verdict.loss.step == 3
    assert verdict.weights is not None
    assert (verdict.weights.step, verdict.weights.name) == (2, "dense/kernel")
    assert verdict.weights.value == pytest.approx(1e-7, rel=1e-3)


def test_a_small_error_of_a_gradient_is_seen_although_the_weights_hardly_differ() -> None:
    verdict = compare(ALONE, record(step(1, off=0.001), step(2), step(3), replicas=2))
    assert (verdict.parted_at, verdict.cause) == (1, "gradient")
    assert "examples and loss are equal, the weights are not" in verdict.sentence


def test_layers_that_keep_their_own_statistics_are_no_part_of_the_weights_that_must_be_equal() -> None:
    other = step(2, weights=(step(2).weights[0], (99.0,)))
    assert compare(ALONE, record(step(1), other, step(3), replicas=2)).equal


def test_weights_that_training_does_not_move_are_equal_or_apart_without_a_share() -> None:
    still = [step(0, loss=1.0), step(0, loss=1.0)]
    verdict = compare(record(*still), record(*still, replicas=2))
    assert (verdict.parted_at, verdict.weights_share) == (None, None), "as with a learning rate of 0"
    moved = [still[0], step(0, off=1e-9, loss=1.0)]
    assert compare(record(*still), record(*moved, replicas=2)).parted_at == 2


@pytest.mark.parametrize(
    ("second", "more", "cause", "told"),
    [
        (step(2, loss=0.6), {"random": ("Dropout 'a'",)}, "random", "Dropout 'a' draws other random numbers"),
        (
            step(2, loss=0.6),
            {"normalizing": ("BatchNormalization 'b'",)},
            "normalization",
            "BatchNormalization(synchronized=True)",
        ),
        (step(2, loss=0.6), {}, "unknown", "the examples are equal, the loss is not"),
        (
            step(2, loss=0.6, examples=64),
            {"batch": "per_replica"},
            "batch",
            "64 here: with `batch: per_replica`",
        ),
        (step(2, loss=0.6, examples=64), {}, "batch", "each worker makes batches of its own"),
        (
            step(2, loss=0.6, fingerprint=(1.0, 7.0, 9.0)),
            {"random": ("Dropout 'a'",)},
            "examples",
            "the examples of step 2 are not the same",
        ),
        (step(2, loss=float("nan")), {}, "unknown", "at step 2"),
    ],
)
def test_where_they_part_the_records_say_why(
    second: Step, more: dict[str, object], cause: str, told: str
) -> None:
    verdict = compare(ALONE, record(step(1), second, step(3), replicas=4, **more))
    assert (verdict.parted_at, verdict.cause) == (2, cause)
    assert verdict.sentence.startswith("4 replicas part from one process at step 2: ")
    assert told in verdict.sentence


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan])
def test_what_is_not_finite_is_equal_to_itself_alone(number: float) -> None:
    """An infinite number is within no tolerance: a share of it is infinite too."""
    for alone, together, parted_at in ((number, number, None), (number, 1.0, 1), (1.0, number, 1)):
        one, other = record(step(1, loss=alone)), record(step(1, loss=together))
        assert compare(one, other).parted_at == parted_at, (alone, together)


def test_other_weights_at_the_beginning_are_said_first() -> None:
    other = record(step(1), step(2), step(3), begin=((1.0, 2.0, 1.0), (0.0,)))
    verdict = compare(ALONE, other)
    assert (verdict.parted_at, verdict.cause) == (0, "begin")
    assert "before the first step" in verdict.sentence


def test_the_last_weights_are_compared_whole_and_named() -> None:
    weights = (Weight("a", 2, True), Weight("state", 9, False), Weight("b", 2, True))
    one = Record(1, weights, (), (Step(1.0, None, (), ((1.0,), (0.0,), (1.0,))),))
    verdict = compare(one, replace(one, replicas=2), ([1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.5]))
    assert verdict.weights is not None
    assert (verdict.weights.value, verdict.weights.name) == (0.5, "b")
    assert verdict.compared == 1.0
    assert compare(one, one).compared == 0.0
    assert compare(one, one, ([1.0, 1.0], [1.0])).compared == 0.0, (
        "what is not of the same length says nothing"
    )
    assert compare(one, one, ([], [1.0])).compared == compare(one, one, ([1.0], [])).compared == 0.0


def test_other_models_and_no_steps_cannot_be_compared() -> None:
    with pytest.raises(Incomparable, match="the models differ"):
        compare(ALONE, replace(ALONE, weights=(Weight("dense/kernel", 4, True), WEIGHTS[1])))
    with pytest.raises(Incomparable, match="no step was recorded"):
        compare(ALONE, record())


def test_a_training_that_ended_earlier_is_compared_as_far_as_it_went() -> None:
    assert compare(ALONE, record(step(1), step(2))).steps == 2
    assert [row[0] for row in rows(ALONE, record(step(1), step(2)))] == [1, 2]
