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
            course.begins_with = [OWN]
            return rebatch
        return lambda whole, worker: rebatch(summing_up(whole, course), worker)

    owner._make_rebatch_fn = _make_rebatch_fn


def summing_up(dataset: Any, course: Course) -> Any:
    """Return the data set; the course gets to know what its newest iterator begins with, once that is read."""
    import tensorflow as tf

    kind = DRAWN if draws_by_turns(dataset) else WHOLE

    def keep(*leaves: Any) -> Any:
        import numpy as np

        if not course.is_compared:
            with contextlib.suppress(Exception):  # what cannot be summed up is not compared
                course.begins_with = [kind, *summed_up(list(leaves))]
        return np.int64(0)

    def seen(number: Any, batch: Any) -> Any:
        flat = tf.nest.flatten(batch, expand_composites=True)
        leaves = [leaf for leaf in flat if getattr(leaf, "dtype", tf.variant) != tf.variant]
        tf.cond(number > 0, lambda: number, lambda: tf.numpy_function(keep, leaves, tf.int64))
        return batch

    return dataset.enumerate().map(tf.autograph.experimental.do_not_convert(seen))


def compare(strategy: Any, report: Reporter, course: Course) -> None:
    """Refuse a second step where the first batches of the workers differ. All must call this, after each step.

    Of epochs that a restart passes over, iterators may be made that nobody reads: then which batch was the first one is
    not known.
    """
    if course.is_compared or workers_of(strategy) == 1:
        return
    course.is_compared = True
    mine = [] if course.epochs_done else list(course.begins_with)
    if mine[:1] == [WHOLE] and course.is_read_by_many:
        mine[0] = DRAWN
    rows = rows_of_workers(strategy, [*mine, *[0.0] * 5][:5])
    said, is_noise = apart(names_of_workers(strategy), rows)
    if said and is_noise:
        report("batch", f"{said}: what its functions draw may be why, and noise may differ by worker")
    elif said:
        raise report.unsupported(
            f"the workers see the data in another order: {said}, so a global batch would be put together from parts of "
            "different ones. It ends before its second step: sort the files, seed what shuffles, and leave out "
            "`deterministic=False` and `AutoShardPolicy`, or remove `transparent: true`"
        )


def apart(names: list[str], rows: list[list[float]]) -> tuple[str, bool]:
    """Return which workers have read another first batch than the first one, and whether noise may be why."""
    if any(row[0] == UNKNOWN for row in rows):
        return "", False
    first = rows[0]
    others = [
        name
        for name, row in zip(names, rows, strict=True)
        if row[0] != first[0] or difference_of_sums(row[1:], first[1:])
    ]
    if not others:
        return "", False
    is_noise = all(row[0] == DRAWN for row in rows)
    return f"the first batch of {' and '.join(others)} is another one than that of {names[0]}", is_noise
