"""What each replica has counted in an epoch for its figures, which are sums over all replicas.

Each replica counts its own part of the examples, and what a dead one has counted is lost with it. So in each step all
replicas tell each other what each has counted, in an all-reduce that the step has anyway. In Keras's own step, the
metrics follow from the forward pass: they are counted before the gradients are summed up, and told with these, so what
is told is what was counted with this step. In a step of the script's own they may be counted at its end: then the
all-reduce that sums up the examples tells what was counted before the step. Where a replica dies between two of these,
its part of the last one is not known: it is taken to be as large as that of the survivor.

The same is done with the moving averages of BatchNormalization, which are each replica's own until an epoch ends.
"""

from __future__ import annotations

import math
import sys

from orchestrator.task.keras.keras3 import statistics_of
from orchestrator.task.transparent import backup
from orchestrator.task.transparent.atomic import of_tensorflow, owned, plain
from orchestrator.task.transparent.strategy import rows_of_workers, workers_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

GROUP = "shares"
NAME = f"{GROUP}/00000"
"""The name of the shares in a backup: a row for each replica, of all that its metrics hold, and of its averages."""

MAX_BYTES = 1 << 16
AVERAGES_MAX_SHARE = 0.01
"""More is not told: a survivor takes the others' shares to be as large as its own. Averages may take so much, or this
share of the weights' bytes."""


class Shares:
    """The shares of the metrics of one model."""

    def __init__(self, strategy: Any, model: Callable[[], Any], variables: Callable[[], list[Any]]) -> None:
        self._strategy = strategy
        self._model = model
        self._variables = variables
        self.told: Any = None
        """A variable of ours that a step writes: a row for each replica, as of the step, or of its beginning."""

    def with_gradients(self, model: Any) -> bool:
        """Return whether the shares of this model are told with the gradients of its step, and not before."""
        trainer: Any = sys.modules.get("keras.src.backend.tensorflow.trainer")
        if trainer is None or model is not self._model() or not isinstance(model, trainer.TensorFlowTrainer):
            return False
        kind, own = type(model), trainer.TensorFlowTrainer
        if kind.train_step is not own.train_step or kind.compute_metrics is not own.compute_metrics:
            return False
        metrics = [inner for each in model.metrics for inner in getattr(each, "metrics", [each])]
        # One of the script's own may read a weight, which the step has not changed yet.
        are_of_keras = all(
            _is_of_keras(type(each)) and _is_of_keras(getattr(each, "_fn", type(each))) for each in metrics
        )
        return are_of_keras and all(each.dtype == "float32" for each in model.trainable_variables)

    def has_averages(self) -> bool:
        """Return whether all replicas know the moving averages of each."""
        return self.with_gradients(self._model()) and bool(told_of(self._model(), self._strategy)[1])

    def sum_of(self, number: Any, context: Any) -> Any:
        """Return the sum of a number over all replicas, in a step's graph; tell the shares if gradients will not."""
        import tensorflow as tf

        sum_up = tf.distribute.ReduceOp.SUM
        if self.with_gradients(self._model()) or not (row := self.row(context)):
            return context.all_reduce(sum_up, number)
        summed = context.all_reduce(
            sum_up, tf.concat([tf.cast(tf.reshape(number, [1]), tf.float32), *row], 0)
        )
        self.tell(summed[1:], context)
        return tf.cast(summed[0], number.dtype)

    def row(self, context: Any) -> list[Any]:
        """Return what this replica adds to an all-reduce that tells the shares; nothing if they are too many.

        Each number is sent as two, the second one being what the first is short of: gradients have half of its bits.
        """
        import tensorflow as tf

        variables = [of_tensorflow(each) for each in self._variables()]
        if not variables:
            return []
        parts = [tf.reshape(tf.cast(each.read_value(), tf.float64), [-1]) for each in variables]
        exact = tf.concat(parts, 0)
        coarse = tf.cast(exact, tf.float32)
        rest = tf.where(
            tf.math.is_finite(coarse), tf.cast(exact - tf.cast(coarse, tf.float64), tf.float32), 0.0
        )
        is_mine = tf.range(self._strategy.num_replicas_in_sync)[:, None] == _place(context)
        return [tf.reshape(tf.where(is_mine, tf.concat([coarse, rest], 0)[None, :], 0.0), [-1])]

    def tell(self, summed: Any, context: Any) -> None:
        """Keep the shares of all replicas, which an all-reduce has summed up."""
        import tensorflow as tf

        replicas, variables = self._strategy.num_replicas_in_sync, self._variables()
        coarse, rest = tf.split(tf.cast(tf.reshape(summed, [replicas, -1]), tf.float64), 2, axis=1)
        if self.told is None or self.told.shape != coarse.shape:
            shape = coarse.shape
            self.told = plain(lambda: tf.zeros(shape, tf.float64), owned(variables[0])[0].device)
        # The first replica of each process is enough, since all have the same.
        if int(tf.get_static_value(_place(context))) % (replicas // workers_of(self._strategy)) == 0:
            self.told.assign(coarse + rest, read_value=False)

    def known(self, values: Callable[[Any], list[Any]]) -> dict[str, Any]:
        """Return the shares after the last whole step, for a backup, without a peer; nothing if none were told.

        Args:
            values: returns the values of a variable on each replica of this process.
        """
        if self.told is None:
            return {}
        shares, mine = self.told.numpy(), _rows([values(each) for each in self._variables()])
        if mine.shape[-1] != shares.shape[1]:
            return {}
        first = _first(self._strategy, len(mine))
        shares += mine[0] - shares[first]  # nothing, where the last step to be told of was the last one
        shares[first : first + len(mine)] = mine
        return {NAME: shares}


def told_of(model: Any, strategy: Any) -> tuple[list[Any], list[Any]]:
    """Return the variables that are told: those of the metrics, and the moving averages. What is too large is not."""
    metrics = backup.variables_of(model)["metrics"]
    averages = statistics_of(model) if hasattr(model, "metrics_variables") else []
    size, replicas = sum(map(_size, metrics)), strategy.num_replicas_in_sync
    if size * replicas * 8 > MAX_BYTES:
        return [], []
    most = max(MAX_BYTES, AVERAGES_MAX_SHARE * 4 * sum(map(_size, model.trainable_variables)))
    return metrics, averages if (size + sum(map(_size, averages))) * replicas * 8 <= most else []


def of_all(strategy: Any, model: Any) -> dict[str, Any]:
    """Return the shares of all replicas, for a backup; nothing if they are too many. All workers must call it."""
    import numpy as np

    metrics, averages = told_of(model, strategy)
    if not metrics:
        return {}
    mine = _rows([[each.numpy() for each in owned(variable)] for variable in [*metrics, *averages]])
    return {NAME: np.reshape(rows_of_workers(strategy, mine.ravel().tolist()), (-1, mine.shape[1]))}


def give_back(strategy: Any, model: Any, values: dict[str, Any], *, averages: bool = False) -> bool:
    """Add to each replica's metrics what it had counted, or assign its averages.

    Return False where there are other replicas, or metrics.
    """
    metrics, own = told_of(model, strategy)
    shares, at = values.get(NAME), sum(map(_size, metrics))
    if shares is None or shares.shape != (strategy.num_replicas_in_sync, at + sum(map(_size, own))):
        return False
    at = at if averages else 0
    for variable in own if averages else metrics:
        each = owned(variable)
        first, size = _first(strategy, len(each)), _size(variable)
        for component, row in zip(each, shares[first : first + len(each)], strict=True):
            share = row[at : at + size].reshape([int(length) for length in component.shape])
            change = component.assign if averages else component.assign_add
            change(share.astype(component.dtype.as_numpy_dtype))
        at += size
    return True


def _place(context: Any) -> Any:
    import tensorflow as tf

    return tf.convert_to_tensor(context.replica_id_in_sync_group)


def _is_of_keras(thing: Any) -> bool:
    return str(getattr(thing, "__module__", "")).startswith("keras.")


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
