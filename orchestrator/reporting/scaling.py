"""The speed-up of a training with more replicas, from the measurements of `orch scale`. Pure.

The time of a step is split by differences of measured times. Input: the time that a step saves if its batch is in
memory. Communication, and waiting for the slowest replica: the time that such a step takes beyond the computation of a
replica's part of the batch, as measured with the fewest replicas.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from orchestrator.core.words import counted

WORTH_IT = 0.7
"""The lowest efficiency at which more replicas are recommended. Below it a third of each machine is lost."""

COMMUNICATION_FAIR = 0.25
"""The share of communication that a larger batch should reach."""

INPUT_MANY = 0.2
"""The share of input above which its remedy is shown."""

BATCH_FACTOR_MAX = 16


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurements of a size. Times in seconds; losses by step."""

    replicas: int
    step_s: float
    step_s_low: float
    step_s_high: float
    batch: int | None = None
    """Of all replicas together."""
    steps_per_epoch: int | None = None
    input_free_s: float | None = None
    """The time of a step whose batch is in memory."""
    losses: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Row:
    """A size in figures that people compare. Shares are of a step's time; None if not measured."""

    replicas: int
    step_s: float
    step_s_low: float
    step_s_high: float
    epoch_s: float | None
    examples_per_s: float | None
    speedup: float
    efficiency: float
    input_share: float | None
    communication_share: float | None
    batch: int | None
    loss: float | None
    """The loss after as many examples as all sizes have seen (steps, if the batch size is unknown)."""


def measured_of(replicas: int, figures: Mapping[str, float]) -> Measured | None:
    """Return the measurements that a task reported; None if no step was measured."""
    if "step_s" not in figures:
        return None
    step_s = figures["step_s"]
    losses = sorted(
        (int(name.removeprefix("loss@")), value)
        for name, value in figures.items()
        if name.removeprefix("loss@").isdecimal()
    )
    return Measured(
        replicas=replicas,
        step_s=step_s,
        step_s_low=figures.get("step_s_low", step_s),
        step_s_high=figures.get("step_s_high", step_s),
        batch=_whole(figures.get("batch")),
        steps_per_epoch=_whole(figures.get("steps_per_epoch")),
        input_free_s=figures.get("input_free_s"),
        losses=tuple(losses),
    )


def _whole(number: float | None) -> int | None:
    return int(number) if number is not None and number >= 1 else None


def table(sizes: Sequence[Measured]) -> list[Row]:
    """Return a row for each size, compared with the smallest."""
    ordered = sorted(sizes, key=lambda size: size.replicas)
    batches_known = all(size.batch for size in ordered)
    seen = [
        size.losses[-1][0] * ((size.batch or 1) if batches_known else 1) for size in ordered if size.losses
    ]
    examples = min(seen) if len(seen) == len(ordered) else None
    return [_row(size, ordered[0], examples, batches_known=batches_known) for size in ordered]


def _row(size: Measured, least: Measured, examples: float | None, *, batches_known: bool) -> Row:
    batch = size.batch if batches_known else None
    speedup = _rate(size, least) / _rate(least, least)
    at = examples / (batch or 1) if examples is not None else None
    return Row(
        replicas=size.replicas,
        step_s=size.step_s,
        step_s_low=size.step_s_low,
        step_s_high=size.step_s_high,
        epoch_s=size.step_s * size.steps_per_epoch if size.steps_per_epoch else None,
        examples_per_s=batch / size.step_s if batch else None,
        speedup=speedup,
        efficiency=speedup * least.replicas / size.replicas,
        input_share=_input_share(size),
        communication_share=_communication_share(size, least),
        batch=size.batch,
        loss=_loss_at(size.losses, at) if at is not None else None,
    )


def _rate(size: Measured, least: Measured) -> float:
    """Return the work per second, in examples, epochs or steps: the first unit that both sizes have."""
    if size.batch and least.batch:
        return size.batch / size.step_s
    if size.steps_per_epoch and least.steps_per_epoch:
        return 1 / (size.step_s * size.steps_per_epoch)
    return 1 / size.step_s


def _input_share(size: Measured) -> float | None:
    if size.input_free_s is None:
        return None
    return _share(size.step_s - size.input_free_s, size.step_s)


def _communication_share(size: Measured, least: Measured) -> float | None:
    compute_s = _compute_s(size, least)
    if compute_s is None or size.input_free_s is None:
        return None
    return _share(size.input_free_s - compute_s, size.step_s) if size is not least else 0.0


def _compute_s(size: Measured, least: Measured) -> float | None:
    """Return how long a replica computes its part of the batch, scaled from the smallest size."""
    if least.input_free_s is None or not size.batch or not least.batch:
        return None
    return least.input_free_s * (size.batch / size.replicas) / (least.batch / least.replicas)


def _share(part_s: float, whole_s: float) -> float:
    return min(1.0, max(0.0, part_s / whole_s)) if whole_s > 0 else 0.0


def _loss_at(losses: Sequence[tuple[int, float]], step: float) -> float | None:
    """Return the loss at a step, interpolated between two measured steps."""
    for (before, low), (after, high) in pairwise(losses):
        if before <= step <= after:
            return low + (high - low) * (step - before) / (after - before)
    return losses[-1][1] if losses and step >= losses[-1][0] else None


def verdict(rows: Sequence[Row]) -> str:
    """Return how many replicas are worth it, what limits more of them, and what to do about it."""
    if len(rows) < 2:
        return "one size alone says nothing about more of them: give several, such as --replicas 1,2"
    best = max((row for row in rows if row.efficiency >= WORTH_IT), key=lambda row: row.replicas)
    sentences = [_worth(best, rows)]
    above = [row for row in rows if row.replicas > best.replicas]
    limiting = above[0] if above else rows[-1]
    limits = []
    communication = limiting.communication_share
    if communication is not None and communication > COMMUNICATION_FAIR:
        share = f"at {limiting.replicas}, {communication:.0%} of a step is communication and waiting for the slowest"
        batch = _larger_batch(limiting, communication)
        more = f": raise the batch from {limiting.batch} to {batch} or more" if batch else ""
        limits.append(
            share
            + more
            + ("" if (not above) or not batch else f", or do with fewer than {limiting.replicas}")
        )
    if limiting.input_share is not None and limiting.input_share > INPUT_MANY:
        limits.append(
            f"at {limiting.replicas}, {limiting.input_share:.0%} of a step waits for input: cache() after what is slow "
            "to read, map(…, num_parallel_calls=tf.data.AUTOTUNE), and prefetch() last"
        )
    sentences += limits
    return "; ".join(sentences)


def _worth(best: Row, rows: Sequence[Row]) -> str:
    if best is rows[-1]:
        return (
            f"worth it up to {counted(best.replicas, 'replica')}, the most that was measured: "
            f"{best.speedup:.1f} times as fast as {rows[0].replicas}, efficiency {best.efficiency:.0%}"
        )
    if best is rows[0]:
        following = rows[1]
        return (
            f"stay at {counted(best.replicas, 'replica')}: {following.replicas} are {following.speedup:.1f} times as "
            f"fast, efficiency {following.efficiency:.0%}"
        )
    return f"worth it up to {counted(best.replicas, 'replica')}: {best.speedup:.1f} times as fast as {rows[0].replicas}"


def _larger_batch(row: Row, communication: float) -> int | None:
    """Return the global batch at which communication would take a fair share of a step."""
    if not row.batch:
        return None
    rest = 1.0 - communication
    factor = (
        communication * (1 - COMMUNICATION_FAIR) / (COMMUNICATION_FAIR * rest)
        if rest > 0
        else BATCH_FACTOR_MAX
    )
    doubled = 2
    while doubled < min(factor, BATCH_FACTOR_MAX):
        doubled *= 2
    return row.batch * doubled
