"""Makes figures and states those of the global batch: values that a step gives to `Mean` and `Sum`, or assigns.

Metrics that are given a value for each example need nothing: their sums and counts add up over the replicas. What is
neither that nor a sum or a mean, such as the result of a script's function, is computed on the whole batch.
"""

from __future__ import annotations

import functools
import sys

from orchestrator.task.transparent import step as steps
from orchestrator.task.transparent.whole import NotOfTheBatch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from orchestrator.task.transparent.reporter import Reporter


def install(library: str, report: Reporter, script: str, folder: str) -> None:
    """Patch `Mean`, `Sum`, BatchNormalization and variables of this Keras."""
    import tensorflow as tf
    from tensorflow.python.distribute import values

    variables: Any = values.MirroredVariable
    for name in ("assign", "assign_add", "assign_sub"):
        change = _mirrored(getattr(variables, name), name)
        setattr(variables, name, _of_all_replicas(change, report, script, folder))
    metrics = sys.modules[library].metrics
    metrics.Mean.update_state = _of_the_global_batch(metrics.Mean.update_state, report, adds_up=False)
    metrics.Sum.update_state = _of_the_global_batch(metrics.Sum.update_state, report, adds_up=True)
    if library == "keras":
        normalization = sys.modules["keras"].layers.BatchNormalization
        normalization._moments = _without_empty_batches(normalization._moments)
        normalization.call = steps.of_each_example(_with_own_statistics(normalization.call), place=1)
        # What they do beside the work on each example is noise, such as pairs that are drawn, or a check.
        changed = sys.modules[
            "keras.src.layers.preprocessing.image_preprocessing.base_image_preprocessing_layer"
        ]
        for layer in (changed.BaseImagePreprocessingLayer, sys.modules["keras"].layers.CategoryEncoding):
            layer.call = steps.of_each_example(layer.call, place=1)
        words = sys.modules["keras"].layers.TextVectorization
        words.call = steps.of_each_example(_as_wide_as_the_batch(words.call), place=1)
        trainer = sys.modules["keras.src.trainers.trainer"].Trainer
        trainer._compute_loss = _then_countable(trainer._compute_loss)
        trainer.compute_metrics = _counted_once(trainer.compute_metrics)
        variable = sys.modules["keras.src.backend.tensorflow.core"].Variable
        variable.assign = _of_all_replicas(variable.assign, report, script, folder)
    else:
        encodes: Any = sys.modules["tf_keras.src.layers.preprocessing.preprocessing_utils"]
        encoded = steps.of_each_example(encodes.encode_categorical_inputs)
        # AutoGraph would convert the function within, which it finds by `__wrapped__`.
        encodes.encode_categorical_inputs = tf.autograph.experimental.do_not_convert(encoded)
        base: Any = sys.modules[
            "tf_keras.src.layers.normalization.batch_normalization"
        ].BatchNormalizationBase
        words = sys.modules[library].layers.TextVectorization
        words.call = _as_wide_as_the_batch(words.call)
        for layer in (base, words, sys.modules[library].layers.LayerNormalization):
            layer.call = call_of_each_example(layer.call)
        may_be_empty = base._support_zero_size_input
        # Statistics of the whole batch are kept by a replica without an example too.
        base._support_zero_size_input = lambda layer: not layer.synchronized and may_be_empty(layer)
        loss = sys.modules["tf_keras.src.losses"].Loss
        loss._get_reduction = _also_means(loss._get_reduction)


def _also_means(get: Any) -> Any:
    """Let a loss in a `train_step` be a mean over the batch, which tf_keras refuses under a strategy: it is shared."""

    @functools.wraps(get)
    def reduction(self: Any) -> Any:
        self._allow_sum_over_batch_size |= steps.current() is not None
        return get(self)

    return reduction


def call_of_each_example(call: Any) -> Any:
    """Say of a layer of tf_keras that its results have a row for each example, in a function that AutoGraph calls too.

    tf_keras passes what the signature of `call` has: LayerNormalization's has no `training`.
    """
    import inspect

    import tensorflow as tf

    computing: Any = steps.of_each_example(call, place=1)
    computing.__signature__ = inspect.signature(call)
    return tf.autograph.experimental.do_not_convert(computing)


def _as_wide_as_the_batch(call: Any) -> Any:
    """Pad a replica's texts to the longest of the whole batch, as one process does. Means over words depend on it."""

    @functools.wraps(call)
    def padding(self: Any, *args: Any, **kwargs: Any) -> Any:
        import tensorflow as tf

        words, step = call(self, *args, **kwargs), steps.current()
        is_as_wide_as_mine = isinstance(words, tf.Tensor) and words.shape.rank == 2 and words.shape[1] is None
        if step is None or step.replicas == 1 or not is_as_wide_as_mine:
            return words
        width = tf.shape(words)[1:]
        return tf.pad(words, [[0, 0], [0, tf.reduce_max(step.gathered(width)) - width[0]]])

    return padding


def _then_countable(compute_loss: Any) -> Any:
    """Have the metrics of Keras's own step counted with its gradients, which tell them to all (see `shares.py`)."""

    @functools.wraps(compute_loss)
    def computing(
        self: Any,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        loss, step = compute_loss(self, x, y, y_pred, sample_weight, training), steps.current()
        if training and step is not None and step.shares is not None and step.shares.with_gradients(self):
            step.counting = functools.partial(self.compute_metrics, x, y, y_pred, sample_weight=sample_weight)
        return loss

    return computing


def _counted_once(compute_metrics: Any) -> Any:
    @functools.wraps(compute_metrics)
    def computing(self: Any, *args: Any, **kwargs: Any) -> Any:
        step = steps.current()
        if step is None or step.counted is None:
            return compute_metrics(self, *args, **kwargs)
        counted, step.counted = step.counted, None
        return counted

    return computing


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


def _mirrored(change: Any, name: str) -> Any:
    """Return what changes a variable of TensorFlow in a replica: without an aggregation, TensorFlow would not do it."""

    @functools.wraps(change)
    def changing(self: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        import tensorflow as tf

        if steps.current() is not None and self.aggregation is tf.VariableAggregation.NONE:
            return getattr(self._get(), name)(value, *args, **kwargs)
        return change(self, value, *args, **kwargs)

    return changing


def _of_all_replicas(assign: Any, report: Reporter, script: str, folder: str) -> Any:
    """Let a state of a layer or a step be that of the global batch: a replica's own would differ from the others'."""

    @functools.wraps(assign)
    def assign_of_all_replicas(self: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        import tensorflow as tf

        step = steps.current()
        if (
            step is None
            or step.own_statistics
            or self.aggregation in ("sum", tf.VariableAggregation.SUM)
            or not tf.is_symbolic_tensor(value)
            or not (value.dtype.is_floating or isinstance(self.aggregation, str))
        ):
            return assign(self, value, *args, **kwargs)
        if step.kinds.kind_of(value).name in ("same", "count"):
            return assign(self, value, *args, **kwargs)
        try:
            return assign(self, step.total_of(value), *args, **kwargs)
        except NotOfTheBatch as e:
            line = steps.line_of_script(folder, e.tensor)
            raise report.unsupported(
                f"{line or script}: the variable {getattr(self, 'path', self.name)} is assigned what is neither a sum "
                f"nor a mean over the examples of a batch, and cannot be computed on the whole batch either ({e}): "
                "remove `transparent: true`"
            ) from None

    return assign_of_all_replicas


def _without_empty_batches(moments: Any) -> Any:
    """Keep the moving averages as they are where a replica has no example: a mean of nothing is not a number."""

    @functools.wraps(moments)
    def moments_of_examples(self: Any, inputs: Any, mask: Any) -> Any:
        step = steps.current()
        if step is not None and step.is_proof and not self.synchronized:
            # Those of the whole batch in both ways of computing it, since a replica's own would differ.
            step.left_out.add("statistics of BatchNormalization" if mask is None else steps.NOISE)
            moments_of = sys.modules["keras"].ops.moments
            return moments_of(inputs, axes=self._reduction_axes, synchronized=True)
        mean, variance = moments(self, inputs, mask)
        if step is None or not step.may_be_empty or self.synchronized:
            return mean, variance
        import tensorflow as tf

        there = step.rows > 0
        return (
            tf.where(there, mean, tf.cast(self.moving_mean, mean.dtype)),
            tf.where(there, variance, tf.cast(self.moving_variance, variance.dtype)),
        )

    return moments_of_examples


def _of_the_global_batch(update_state: Any, report: Reporter, adds_up: bool) -> Any:
    @functools.wraps(update_state)
    def update_state_of_the_global_batch(self: Any, values: Any, sample_weight: Any = None) -> Any:
        import tensorflow as tf

        step = steps.current()
        if (
            step is None
            or not tf.is_symbolic_tensor(values)
            or not values.dtype.is_floating
            or step.replicas == 1
        ):
            return update_state(self, values, sample_weight=sample_weight)
        kind = step.kinds.kind_of(values)
        is_of_each = values.shape.rank != 0 and kind.name in steps.SHARED
        if kind.name != "same" and not is_of_each:
            try:
                values = step.figure(values) if values.shape.rank == 0 else step.whole(values).value
            except NotOfTheBatch as e:
                report(
                    "metrics",
                    f"{self.name} is the mean of what each replica finds in its part of a batch: {e}",
                )
                values = step.guarded(values)
        if adds_up and not is_of_each:
            values /= tf.cast(step.replicas, values.dtype)
        is_number = tf.is_symbolic_tensor(sample_weight) and sample_weight.shape.rank == 0
        if not is_of_each and is_number and step.kinds.kind_of(sample_weight).name == "count":
            sample_weight = step.total / float(step.replicas)
        return update_state(self, values, sample_weight=sample_weight)

    return update_state_of_the_global_batch
