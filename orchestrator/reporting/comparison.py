"""Compares the training of several workers with that of one process, step by step. Pure.

`orch prove` trains a script in one process and as in the spec, from equal weights. Both record the loss of each step, a
fingerprint of its examples, and some values of each weight. If they diverge, the records show why.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from orchestrator.core.words import counted, listed

TOLERANCE = 1e-3
"""The relative difference that the order of summation may cause, in the loss and in the change of the weights."""

FINGERPRINT = 1e-6
"""The same for the fingerprint of a step's examples, which does not depend on the training."""


@dataclass(frozen=True, slots=True)
class Weight:
    """A weight of the model."""

    name: str
    size: int
    trainable: bool


@dataclass(frozen=True, slots=True)
class Step:
    """A training step. `weights` has some values of each weight after the step."""

    loss: float | None
    examples: int | None
    fingerprint: tuple[float, ...]
    """Sums over the examples that do not depend on their order; empty if they could not be computed."""
    weights: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class Record:
    """The record of a training."""

    replicas: int
    weights: tuple[Weight, ...]
    begin: tuple[tuple[float, ...], ...]
    """Some values of each weight before the first step; empty if the first step creates the weights."""
    steps: tuple[Step, ...]
    random: tuple[str, ...] = ()
    """Layers that draw random numbers during training."""
    normalizing: tuple[str, ...] = ()
    """Layers that normalize with the statistics of a replica's part of the batch."""
    batch: str = "global"
    """The meaning of the script's batch size: `global` or `per_replica`."""
    stride: int = 1
    """Every stride-th value of the final weights was kept."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The largest difference between two numbers that should be equal, and its step."""

    value: float
    step: int
    name: str = ""
    """The name of the weight."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result. The trainings diverge at step `parted_at`; 0: before the first step; None: nowhere."""

    steps: int
    replicas: int
    loss: Difference | None
    weights: Difference | None
    weights_share: float | None
    """The largest difference of all weights at any step, as a share of their change by training."""
    compared: float
    """The share of the final weights that were compared."""
    parted_at: int | None
    cause: str | None
    """`begin`, `batch`, `examples`, `normalization`, `random`, `gradient` or `unknown`."""
    sentence: str

    @property
    def equal(self) -> bool:
        """Whether both trainings are equal."""
        return self.parted_at is None


class Incomparable(ValueError):
    """The two records cannot be compared."""


def compare(
    alone: Record,
    together: Record,
    last: tuple[Sequence[float], Sequence[float]] = ((), ()),
    *,
    tolerance: float = TOLERANCE,
) -> Verdict:
    """Compare one process with several replicas.

    Args:
        alone: the training in one process.
        together: the training as in the spec.
        last: the kept values of the final weights, of both.
        tolerance: see TOLERANCE.

    Raises:
        Incomparable: why nothing can be compared.
    """
    if not alone.steps or not together.steps:
        raise Incomparable("no step was recorded: the script must train by Keras's fit")
    if [weight.size for weight in alone.weights] != [weight.size for weight in together.weights]:
        raise Incomparable(
            f"the models differ: one process has {counted(len(alone.weights), 'weight')}, the replicas have "
            f"{len(together.weights)}, or of other shapes: does the script look at the number of its workers?"
        )
    steps = min(len(alone.steps), len(together.steps))
    shares = [_share(alone, together, step) for step in range(steps)]
    pairs = zip(alone.begin, together.begin, strict=False)
    parted = (
        0
        if any(
            not _near(a, b, FINGERPRINT) for solo, other in pairs for a, b in zip(solo, other, strict=False)
        )
        else _parted_at(alone, together, shares, tolerance)
    )
    cause, why = _cause(alone, together, parted, tolerance) if parted is not None else (None, "")
    loss, weights = _loss(alone, together), _weights(alone, together, last)
    kept = len(last[0]) == len(last[1]) > 0
    return Verdict(
        steps=steps,
        replicas=together.replicas,
        loss=loss,
        weights=weights,
        weights_share=max((share for share in shares if share is not None), default=None),
        compared=1 / alone.stride if kept else 0.0,
        parted_at=parted,
        cause=cause,
        sentence=_sentence(together.replicas, steps, parted, why),
    )


def _near(a: float, b: float, tolerance: float) -> bool:
    if not (math.isfinite(a) and math.isfinite(b)):
        return a == b or (math.isnan(a) and math.isnan(b))
    return abs(a - b) <= tolerance * max(1.0, abs(a))


def _parted_at(
    alone: Record, together: Record, shares: Sequence[float | None], tolerance: float
) -> int | None:
    """Return the first step, counted from 1, after which loss or weights differ."""
    for number, (solo, other, share) in enumerate(
        zip(alone.steps, together.steps, shares, strict=False), start=1
    ):
        if solo.loss is not None and other.loss is not None and not _near(solo.loss, other.loss, tolerance):
            return number
        if share is not None and not share <= tolerance:
            return number
    return None


def _share(alone: Record, together: Record, step: int) -> float | None:
    """Return the difference of all trainable weights, as a share of their change by training up to this step."""
    apart = moved = 0.0
    for place, weight in enumerate(alone.weights):
        if not weight.trainable:
            continue
        values = alone.steps[step].weights[place]
        begin = alone.begin[place] if alone.begin else [0.0] * len(values)
        pairs = zip(values, together.steps[step].weights[place], begin, strict=False)
        for a, b, start in pairs:
            apart += (a - b) ** 2
            moved += (a - start) ** 2
    if math.isnan(apart):
        return math.inf
    return math.sqrt(apart / moved) if moved > 0 else None if apart == 0 else math.inf


def _loss(alone: Record, together: Record) -> Difference | None:
    differences = [
        Difference(abs(solo.loss - other.loss), number)
        for number, (solo, other) in enumerate(zip(alone.steps, together.steps, strict=False), start=1)
        if solo.loss is not None and other.loss is not None
    ]
    return max(differences, key=lambda each: each.value, default=None)


def _weights(
    alone: Record, together: Record, last: tuple[Sequence[float], Sequence[float]]
) -> Difference | None:
    differences = [
        Difference(abs(a - b), number, weight.name)
        for number, (solo, other) in enumerate(zip(alone.steps, together.steps, strict=False), start=1)
        for weight, mine, theirs in zip(alone.weights, solo.weights, other.weights, strict=False)
        if weight.trainable
        for a, b in zip(mine, theirs, strict=False)
    ]
    steps = min(len(alone.steps), len(together.steps))
    if last[0] and len(last[0]) == len(last[1]):
        place, value = max(
            enumerate(abs(a - b) for a, b in zip(*last, strict=True)), key=lambda pair: pair[1]
        )
        differences.append(Difference(value, steps, _name_at(alone, place * alone.stride)))
    return max(differences, key=lambda each: each.value, default=None)


def _name_at(record: Record, place: int) -> str:
    """Return the trainable weight at a position among all values."""
    for weight in record.weights:
        if weight.trainable:
            if place < weight.size:
                return weight.name
            place -= weight.size
    return ""


def _cause(alone: Record, together: Record, parted: int, tolerance: float) -> tuple[str, str]:
    """Return why two trainings diverge at a step, from their records up to it."""
    if parted == 0:
        return "begin", (
            "the script initializes the weights from what no seed covers, such as the time or a number of its process"
        )
    for number, (solo, other) in enumerate(zip(alone.steps[:parted], together.steps, strict=False), start=1):
        cause = _cause_in_data(solo, other, number, together)
        if cause is not None:
            return cause
    replicas = counted(together.replicas, "replica")
    if together.random:
        return "random", (
            f"{listed(list(together.random))} draw{'s' * (len(together.random) == 1)} other random numbers on "
            "each replica, as it should: that cannot be proven; set the rate to 0 for the proof"
        )
    if together.normalizing:
        return "normalization", (
            f"{listed(list(together.normalizing))}: each replica normalizes with the statistics of its own part of a "
            "batch; BatchNormalization(synchronized=True) takes those of the whole batch"
        )
    solo, other = alone.steps[parted - 1], together.steps[parted - 1]
    if solo.loss is None or other.loss is None or _near(solo.loss, other.loss, tolerance):
        return "gradient", (
            f"examples and loss are equal, the weights are not: the gradient of {replicas} is not that of one process"
        )
    return "unknown", (
        "the examples are equal, the loss is not: it is computed differently on each replica, or from random numbers "
        "that are drawn outside of Keras's layers"
    )


def _cause_in_data(solo: Step, other: Step, number: int, together: Record) -> tuple[str, str] | None:
    if solo.examples is not None and other.examples is not None and solo.examples != other.examples:
        sizes = f"step {number} has {solo.examples} examples in one process, {other.examples} here"
        if together.batch == "per_replica":
            return "batch", f"{sizes}: with `batch: per_replica` each replica has the script's whole batch"
        return "batch", f"{sizes}: each worker makes batches of its own"
    if solo.fingerprint and other.fingerprint:
        scale = max(1.0, abs(solo.fingerprint[-1]))
        if any(
            not abs(a - b) <= FINGERPRINT * scale
            for a, b in zip(solo.fingerprint, other.fingerprint, strict=False)
        ):
            return "examples", (
                f"the examples of step {number} are not the same: the data is shared by files, shuffled or augmented "
                "by random numbers without a seed, or each worker reads its own"
            )
    return None


def _sentence(replicas: int, steps: int, parted: int | None, why: str) -> str:
    many = counted(replicas, "replica")
    if parted is None:
        return (
            f"equal: {many} trained the same {counted(steps, 'step')} as one process, up to the order of sums"
        )
    where = f"at step {parted}" if parted else "before the first step"
    return f"{many} part from one process {where}: {why}"


def rows(alone: Record, together: Record) -> Iterator[tuple[int, float | None, float | None, float | None]]:
    """Yield each step with both losses and the relative difference of the weights."""
    for step, (solo, other) in enumerate(zip(alone.steps, together.steps, strict=False)):
        yield step + 1, solo.loss, other.loss, _share(alone, together, step)
