"""What each replica has counted in an epoch for its figures, which are sums over all replicas.

Each replica counts its own part of the examples, and what a dead one has counted is lost with it. So each step begins
by telling all replicas what each had counted before it, in the all-reduce that sums up the examples: it costs no other
one. Where a replica dies within a step, its peers know all. Where it dies between two steps, its part of the last one
is not known: it is taken to be as large as that of the survivor.
"""

from __future__ import annotations

import math

from orchestrator.task.transparent.atomic import of_tensorflow, owned, plain
from orchestrator.task.transparent.strategy import rows_of_workers, workers_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

GROUP = "shares"
NAME = f"{GROUP}/00000"
"""The name of the shares in a backup: a row for each replica, of all that its metrics hold."""

MAX_BYTES = 1 << 16
"""More is not told: a survivor takes the others' shares to be as large as its own."""


class Shares:
    """The shares of the metrics of one model."""

    def __init__(self, strategy: Any, variables: Callable[[], list[Any]]) -> None:
        self._strategy = strategy
        self._variables = variables
        self.told: Any = None
        """A variable of ours that a step writes: a row for each replica, as of the beginning of the last step."""

    def sum_of(self, number: Any, context: Any) -> Any:
        """Return the sum of a number over all replicas, in a step's graph, and tell all replicas the shares."""
        import tensorflow as tf

        sum_up, replicas = tf.distribute.ReduceOp.SUM, self._strategy.num_replicas_in_sync
        variables = [of_tensorflow(each) for each in self._variables()]
        if not (size := _told_of(self._strategy, variables)):
            return context.all_reduce(sum_up, number)
        parts = [tf.reshape(tf.cast(each.read_value(), tf.float64), [-1]) for each in variables]
        place = tf.convert_to_tensor(context.replica_id_in_sync_group)
        is_mine = tf.range(replicas)[:, None] == place
        rows = tf.where(is_mine, tf.concat(parts, 0)[None, :], tf.zeros([], tf.float64))
        sent = tf.concat([tf.cast(tf.reshape(number, [1]), tf.float64), tf.reshape(rows, [-1])], 0)
        summed = context.all_reduce(sum_up, sent)
        if self.told is None or self.told.shape != (replicas, size):
            self.told = plain(lambda: tf.zeros([replicas, size], tf.float64), owned(variables[0])[0].device)
        # The first replica of each process is enough, since all have the same.
        if int(tf.get_static_value(place)) % (replicas // workers_of(self._strategy)) == 0:
            self.told.assign(tf.reshape(summed[1:], [replicas, size]), read_value=False)
        return tf.cast(summed[0], number.dtype)

    def known(self, values: Callable[[Any], list[Any]]) -> dict[str, Any]:
        """Return the shares after the last whole step, for a backup, without a peer; nothing if none were told.

        Args:
            values: returns the values of a variable on each replica of this process.
        """
        shares = self.told.numpy() if self.told is not None else None
        mine = _rows([values(each) for each in self._variables()])
        if shares is None or mine.shape[-1] != shares.shape[1]:
            return {}
        first = _first(self._strategy, len(mine))
        shares += mine[0] - shares[first]  # nothing, where the last step to be told of was the last one
        shares[first : first + len(mine)] = mine
        return {NAME: shares}


def of_all(strategy: Any, variables: list[Any]) -> dict[str, Any]:
    """Return the shares of all replicas, for a backup; nothing if they are too many. All workers must call it."""
    import numpy as np

    if not (size := _told_of(strategy, variables)):
        return {}
    mine = _rows([[each.numpy() for each in owned(variable)] for variable in variables])
    return {NAME: np.reshape(rows_of_workers(strategy, mine.ravel().tolist()), (-1, size))}


def give_back(strategy: Any, variables: list[Any], values: dict[str, Any]) -> bool:
    """Add to each replica's metrics what it had counted. Return False where there are other replicas, or metrics."""
    shares, size = values.get(NAME), sum(_size(variable) for variable in variables)
    if shares is None or shares.shape != (strategy.num_replicas_in_sync, size):
        return False
    at = 0
    for variable in variables:
        each = owned(variable)
        first, size = _first(strategy, len(each)), _size(variable)
        for component, row in zip(each, shares[first : first + len(each)], strict=True):
            share = row[at : at + size].reshape([int(length) for length in component.shape])
            component.assign_add(share.astype(component.dtype.as_numpy_dtype))
        at += size
    return True


def _told_of(strategy: Any, variables: list[Any]) -> int:
    """Return how many numbers each replica has to tell; 0 if they are too many."""
    size = sum(_size(variable) for variable in variables)
    return size if size * strategy.num_replicas_in_sync * 8 <= MAX_BYTES else 0


def _size(variable: Any) -> int:
    return math.prod(int(size) for size in variable.shape)


def _first(strategy: Any, count: int) -> int:
    """Return the number of the first of this process's replicas."""
    return int(getattr(strategy.extended, "_id_in_cluster", 0)) * count


def _rows(values: list[list[Any]]) -> Any:
    """Return a row for each replica, from the values of each variable on each of them."""
    import numpy as np

    rows = [np.concatenate([np.ravel(each) for each in row]) for row in zip(*values, strict=True)]
    return np.asarray(rows, np.float64)
