"""Makes figures and states those of the global batch: values that a step gives to `Mean` and `Sum`, or assigns.

Metrics that are given a value for each example need nothing: their sums and counts add up over the replicas. A function
of the script may compute anything of the batch, so it is given the whole one, gathered from all replicas.
"""

from __future__ import annotations

import functools
import sys

from orchestrator.task.transparent import step as steps
from orchestrator.task.transparent.kinds import SAME
from orchestrator.task.transparent.kinds import each as each_example

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from orchestrator.task.transparent.reporter import Reporter


def install(library: str, report: Reporter, script: str, folder: str) -> None:
    """Patch `Mean`, `Sum`, BatchNormalization and variables of this Keras."""
    metrics = sys.modules[library].metrics
    metrics.Mean.update_state = _of_the_global_batch(metrics.Mean.update_state, adds_up=False)
    wrapper = metrics.MeanMetricWrapper
    wrapper._fn = _Gathered(wrapper, library, report)
    metrics.Sum.update_state = _of_the_global_batch(metrics.Sum.update_state, adds_up=True)
    if library == "keras":
        normalization = sys.modules["keras"].layers.BatchNormalization
        normalization._moments = _without_empty_batches(normalization._moments)
        normalization.call = _with_own_statistics(normalization.call)
        variable = sys.modules["keras.src.backend.tensorflow.core"].Variable
        variable.assign = _of_all_replicas(variable.assign, report, script, folder)


class _Gathered:
    """The attribute `_fn` of a metric that is a function: within a step, one that computes on the whole batch.

    Outside of a step it is the script's function, which Keras saves with the model.
    """

    def __init__(self, owner: Any, library: str, report: Reporter) -> None:
        self._owner, self._library, self._report = owner, library, report

    def __set__(self, metric: Any, function: Any) -> None:
        metric.__dict__["_fn"] = function

    def __get__(self, metric: Any, _owner: type | None = None) -> Any:
        if metric is None:
            return self
        function, step = metric.__dict__["_fn"], steps.current()
        is_of_keras = str(getattr(function, "__module__", "")).startswith(f"{self._library}.")
        if step is None or step.replicas == 1 or is_of_keras:
            return function
        return functools.partial(self._on_the_whole, step, metric.name, function)

    def _on_the_whole(
        self, step: steps.Step, name: str, function: Any, y_true: Any, y_pred: Any, **given: Any
    ) -> Any:
        import tensorflow as tf

        whole = [step.gathered(tf.convert_to_tensor(each)) for each in (y_true, y_pred)]
        sizes = [int(each.dtype.size * (each.shape[1:].num_elements() or 1)) for each in whole]
        self._report(
            "metrics",
            f"the metric {name} is a function: it is computed on the whole batch, which all replicas send each other "
            f"({sum(sizes)} bytes for each example)",
        )
        values = tf.convert_to_tensor(function(*whole, **given))
        if values.shape.rank == 0 or values.shape[0] is not None:
            step.kinds.set(values, SAME)
            return values
        mine = step.part_of(values, y_pred)
        step.kinds.set(mine, each_example())
        return mine


def _with_own_statistics(call: Any) -> Any:
    """Let BatchNormalization keep the statistics of each replica's part, as it does under any strategy."""

    @functools.wraps(call)
    def call_with_own_statistics(self: Any, *args: Any, **kwargs: Any) -> Any:
        step = steps.current()
        if step is None:
            return call(self, *args, **kwargs)
        step.own_statistics = True
        try:
            return call(self, *args, **kwargs)
        finally:
            step.own_statistics = False

    return call_with_own_statistics


def _of_all_replicas(assign: Any, report: Reporter, script: str, folder: str) -> Any:
    """Let a layer's state be that of the global batch: a replica's own would differ from the others'."""

    @functools.wraps(assign)
    def assign_of_all_replicas(self: Any, value: Any) -> Any:
        import tensorflow as tf

        step = steps.current()
        if (
            step is None
            or step.own_statistics
            or self.aggregation == "sum"
            or not tf.is_symbolic_tensor(value)
        ):
            return assign(self, value)
        if step.kinds.kind_of(value).name in ("same", "count"):
            return assign(self, value)
        try:
            return assign(self, step.total_of(value))
        except steps.NotOfTheBatch as e:
            line = steps.line_of_script(folder, e.tensor)
            raise report.unsupported(
                f"{line or script}: the variable {self.path} is assigned what is neither a sum nor a mean over the "
                "examples of a batch, so the replicas cannot put it together from their parts: remove "
                "`transparent: true`"
            ) from None

    return assign_of_all_replicas


def _without_empty_batches(moments: Any) -> Any:
    """Keep the moving averages as they are where a replica has no example: a mean of nothing is not a number."""

    @functools.wraps(moments)
    def moments_of_examples(self: Any, inputs: Any, mask: Any) -> Any:
        mean, variance = moments(self, inputs, mask)
        step = steps.current()
        if step is None or not step.may_be_empty or self.synchronized:
            return mean, variance
        import tensorflow as tf

        there = step.rows > 0
        return (
            tf.where(there, mean, tf.cast(self.moving_mean, mean.dtype)),
            tf.where(there, variance, tf.cast(self.moving_variance, variance.dtype)),
        )

    return moments_of_examples


def _of_the_global_batch(update_state: Any, adds_up: bool) -> Any:
    @functools.wraps(update_state)
    def update_state_of_the_global_batch(self: Any, values: Any, sample_weight: Any = None) -> Any:
        import tensorflow as tf

        step = steps.current()
        is_figure = tf.is_symbolic_tensor(values) and values.shape.rank == 0 and values.dtype.is_floating
        if step is not None and is_figure:
            if step.kinds.kind_of(values).name != "same":
                try:
                    values = step.figure(values)
                except steps.NotOfTheBatch:
                    values = step.guarded(values)
            if adds_up:
                values /= tf.cast(step.replicas, values.dtype)
            is_number = tf.is_symbolic_tensor(sample_weight) and sample_weight.shape.rank == 0
            if is_number and step.kinds.kind_of(sample_weight).name == "count":
                sample_weight = step.total / float(step.replicas)
        return update_state(self, values, sample_weight=sample_weight)

    return update_state_of_the_global_batch
