"""Compares the first batch that each worker reads in a fit, before its part of it is cut out.

Each worker reads the whole data, as one process does, and takes its part of each batch. Where one reads it in another
order, some examples are trained twice and others not at all, and nothing fails. So after the first step the workers
compare their whole batches, and make no second one where these differ. What draws from a seed draws the same on each.
"""

from __future__ import annotations

import contextlib

from orchestrator.task.transparent.data import draws_by_turns
from orchestrator.task.transparent.identity import difference_of_sums, summed_up
from orchestrator.task.transparent.replay import Course
from orchestrator.task.transparent.strategy import names_of_workers, rows_of_workers, workers_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from orchestrator.task.transparent.reporter import Reporter

UNKNOWN, WHOLE, DRAWN, OWN = 0.0, 1.0, 2.0, 3.0
"""What a worker reads: what cannot be summed up, whole batches, such whose noise may differ, its own part."""


def install(strategy: Any) -> None:
    """Sum up the first batch of the data that a fit shares by DATA: the one before it is cut into parts."""
    if workers_of(strategy) == 1:
        return
    from tensorflow.python.distribute import input_lib

    owner = input_lib.DistributedDataset
    make = owner._make_rebatch_fn

    def _make_rebatch_fn(self: Any, dataset: Any, *sizes: int) -> Any:
        rebatch, course = make(self, dataset, *sizes), Course.current
        if course is None or not course.awaits_data:
            return rebatch
        if dataset.options().experimental_distribute.auto_shard_policy.name != "DATA":
            course.begins_with = [[OWN]]
            return rebatch
        return lambda whole, worker: rebatch(summing_up(whole, course), worker)

    owner._make_rebatch_fn = _make_rebatch_fn


def summing_up(dataset: Any, course: Course) -> Any:
    """Return the data set; the course gets to know what each iterator begins with, once that is read."""
    import tensorflow as tf

    kind = DRAWN if draws_by_turns(dataset) else WHOLE

    def keep(*leaves: Any) -> Any:
        import numpy as np

        if not course.is_compared:
            with contextlib.suppress(Exception):  # what cannot be summed up is not compared
                course.begins_with.append([kind, *summed_up(list(leaves))])
        return np.int64(0)

    def seen(number: Any, batch: Any) -> Any:
        flat = tf.nest.flatten(batch, expand_composites=True)
        leaves = [leaf for leaf in flat if getattr(leaf, "dtype", tf.variant) != tf.variant]
        tf.cond(number > 0, lambda: number, lambda: tf.numpy_function(keep, leaves, tf.int64))
        return batch

    return dataset.enumerate().map(tf.autograph.experimental.do_not_convert(seen))


def compare(strategy: Any, report: Reporter, course: Course) -> None:
    """Refuse a second step where the first batches of the workers differ. All must call this, after each step.

    Of epochs that a restart passes over, iterators are made that nobody reads, or whose first batch is read ahead. So
    several are compared then: workers of which each has seen one that another has, too, may see the same data.
    """
    if course.is_compared or workers_of(strategy) == 1:
        return
    course.is_compared = True
    known = course.begins_with[-ITERATORS:] if course.epochs_done else course.begins_with[-1:]
    mine = [[*batch, *[0.0] * _NUMBERS][:_NUMBERS] for batch in [*known, *[[]] * ITERATORS]][:ITERATORS]
    for batch in mine:
        if batch[0] == WHOLE and course.is_read_by_many:
            batch[0] = DRAWN
    rows = rows_of_workers(strategy, [number for batch in mine for number in batch])
    batches = [[row[at : at + _NUMBERS] for at in range(0, len(row), _NUMBERS)] for row in rows]
    said, is_noise = apart(names_of_workers(strategy), batches)
    if said and is_noise:
        report("batch", f"{said}: what its functions draw may be why, and noise may differ by worker")
    elif said:
        raise report.unsupported(
            f"the workers see the data in another order: {said}, so a global batch would be put together from parts of "
            "different ones. It ends before its second step: sort the files, seed what shuffles, and leave out "
            "`deterministic=False` and `AutoShardPolicy`, or remove `transparent: true`"
        )


ITERATORS = 4
"""Of how many iterators, the newest ones, the first batches are compared after a restart."""
_NUMBERS = 5
"""How many numbers tell a batch."""


def apart(names: list[str], batches: list[list[list[float]]]) -> tuple[str, bool]:
    """Return which workers have read other first batches than the first one, and whether noise may be why."""
    seen = [[batch for batch in each if batch[0] != UNKNOWN] for each in batches]
    if not all(seen):
        return "", False
    others = [
        name
        for name, each in zip(names, seen, strict=True)
        if not any(_is_same(mine, first) for mine in each for first in seen[0])
    ]
    if not others:
        return "", False
    is_noise = all(batch[0] == DRAWN for each in seen for batch in each)
    return f"the first batch of {' and '.join(others)} is another one than that of {names[0]}", is_noise


def _is_same(one: list[float], other: list[float]) -> bool:
    return one[0] == other[0] and not difference_of_sums(one[1:], other[1:])
