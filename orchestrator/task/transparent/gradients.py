"""Gradients of the global batch, in any step, and the refusal of custom training loops.

`tape.gradient` with respect to weights returns the gradient of the global batch on every replica: each term of the
target counts with its share (see `step.py`), and the results are added up over the replicas at once. So all that
follows equals that of a single process: clipping in the script or in the optimizer, norms, accumulation, and loss
scales. The optimizers' own all-reduce is left out.
"""

from __future__ import annotations

import functools
import sys

from orchestrator.task.keras import keras3_conditions
from orchestrator.task.transparent import step as steps
from orchestrator.task.transparent.kinds import SAME

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from orchestrator.task.transparent.reporter import Reporter
    from orchestrator.task.transparent.step import NotOfTheBatch, Step


def install(library: str, report: Reporter, script: str, folder: str) -> None:
    """Patch tf.GradientTape, and the losses and optimizers of this Keras."""
    import tensorflow as tf

    _undivided_in_steps()
    tf.GradientTape.gradient = _of_the_global_batch(tf.GradientTape.gradient, report, script, folder)
    if library == "keras":
        losses: Any = sys.modules["keras.src.losses.loss"]
        optimizer = sys.modules["keras.src.backend.tensorflow.optimizer"].TFOptimizer
        reduce = optimizer._all_reduce_sum_gradients
        optimizer._all_reduce_sum_gradients = _already_reduced(reduce, report, script, folder)
        optimizer.apply = _refusing(optimizer.apply, report, script, folder)
        _count_masked(losses)
        keras3_conditions.patch_everywhere()
    else:
        import importlib

        losses = importlib.import_module("tf_keras.src.utils.losses_utils")
        utils: Any = importlib.import_module("tf_keras.src.optimizers.utils")
        reduce = utils.all_reduce_sum_gradients
        utils.all_reduce_sum_gradients = _already_reduced(reduce, report, script, folder)
        optimizer = sys.modules["tf_keras"].optimizers.Optimizer
        optimizer.apply_gradients = _refusing(optimizer.apply_gradients, report, script, folder)
    for name in ("scale_loss_for_distribution", "unscale_loss_for_distribution"):
        if hasattr(losses, name):
            setattr(losses, name, _unscaled_in_steps(getattr(losses, name)))


def _unscaled_in_steps(scale: Any) -> Any:
    @functools.wraps(scale)
    def scale_outside(value: Any) -> Any:
        return value if steps.current() is not None else scale(value)

    return scale_outside


def _undivided_in_steps() -> None:
    """Let TensorFlow's `compute_average_loss` and `scale_regularization_loss` see one replica within a step.

    They divide by the number of replicas, whose results the script would then add up. In a step the rule of shares does
    that. What they read is replaced, since a script may hold the functions by many names.
    """
    import types

    from tensorflow.python.ops import nn_impl_distribute

    original = nn_impl_distribute.distribute_lib

    def get_strategy() -> Any:
        return (
            original.get_strategy()
            if steps.current() is None
            else types.SimpleNamespace(num_replicas_in_sync=1)
        )

    nn_impl_distribute.distribute_lib = types.SimpleNamespace(
        has_strategy=original.has_strategy,
        in_cross_replica_context=original.in_cross_replica_context,
        get_strategy=get_strategy,
    )


def _count_masked(losses: Any) -> None:
    """Let a loss with a mask be the mean over what the mask leaves, on all replicas together."""
    from orchestrator.task.transparent.kinds import Kind

    reduce = losses.reduce_weighted_values

    @functools.wraps(reduce)
    def reduce_weighted_values(
        values: Any,
        sample_weight: Any = None,
        mask: Any = None,
        reduction: Any = "sum_over_batch_size",
        dtype: Any = None,
    ) -> Any:
        loss = reduce(values, sample_weight=sample_weight, mask=mask, reduction=reduction, dtype=dtype)
        step = steps.current()
        if step is None or getattr(loss, "op", None) is None or loss.shape.rank != 0:
            return loss
        import tensorflow as tf

        if mask is not None and reduction in ("mean", "sum_over_batch_size"):
            step.kinds.set(loss, Kind("mean", count=tf.reduce_sum(tf.cast(mask, tf.float32))))
        return loss

    losses.reduce_weighted_values = reduce_weighted_values


def _of_the_global_batch(gradient: Any, report: Reporter, script: str, folder: str) -> Any:
    @functools.wraps(gradient)
    def of_the_global_batch(
        tape: Any, target: Any, sources: Any, output_gradients: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        step = steps.current()
        if step is None:
            return _explained(
                lambda: gradient(tape, target, sources, output_gradients, *args, **kwargs),
                report,
                script,
                folder,
            )
        if output_gradients is None:
            try:
                # The terms of the target, and for each the gradient that starts at it: its share of the global batch
                import tensorflow as tf

                tensors, starts = [], []
                for each in tf.nest.flatten(target):
                    for tensor, factor, kind in step.terms(tf.convert_to_tensor(each)):
                        weight = step.share(kind)
                        scale = tf.cast(factor, tensor.dtype) * tf.cast(weight, tensor.dtype)
                        tensors.append(tensor)
                        starts.append(tf.ones_like(tensor) * scale)
                target, output_gradients = tensors, starts
            except steps.NotOfTheBatch as e:
                raise report.unsupported(_refusal(e, script, folder)) from None
        gradients = gradient(tape, target, sources, output_gradients, *args, **kwargs)
        return _added_up(step, gradients) if _are_weights(sources) else gradients

    return of_the_global_batch


def _are_weights(sources: Any) -> bool:
    import tensorflow as tf

    flat = tf.nest.flatten(sources)
    return bool(flat) and not any(tf.is_symbolic_tensor(source) for source in flat)


def _added_up(step: Step, gradients: Any) -> Any:
    """Return the gradients added up over all replicas."""
    import tensorflow as tf

    flat = tf.nest.flatten(gradients)
    there = [step.guarded(gradient) for gradient in flat if gradient is not None]
    reduced = iter(step.context.all_reduce(tf.distribute.ReduceOp.SUM, there) if there else ())
    result = [None if gradient is None else next(reduced) for gradient in flat]
    for gradient in result:
        for part in tf.nest.flatten(gradient, expand_composites=True):
            if part is not None:
                step.kinds.set(part, SAME)
    return tf.nest.pack_sequence_as(gradients, result)


def _refusal(error: NotOfTheBatch, script: str, folder: str) -> str:
    line = steps.line_of_script(folder, error.tensor)
    why = (
        "compares the examples of a batch with each other"
        if error.crosses
        else f"is neither a sum nor a mean over the examples of a batch ({error.tensor.op.type} is not linear in them)"
    )
    return (
        f"{line or script}: this loss {why}, so it cannot be put together from the parts that the replicas have: "
        "write it as sums and means over examples, or remove `transparent: true`"
    )


def _already_reduced(reduce: Any, report: Reporter, script: str, folder: str) -> Any:
    """Replace the optimizers' own all-reduce. Gradients that no tape has computed become those of the global batch."""

    @functools.wraps(reduce)
    def all_reduce(*args: Any) -> Any:
        *_, pairs = args
        step = steps.current()
        if step is None:
            return list(pairs) if steps.within_any() else reduce(*args)
        pairs = list(pairs)
        own = [
            place
            for place, (gradient, _) in enumerate(pairs)
            if gradient is not None
            and step.kinds.kind_of(getattr(gradient, "values", gradient)).name not in ("same", "count")
        ]
        if not own:
            return pairs
        for place in own:
            gradient, variable = pairs[place]
            try:
                pairs[place] = (step.total_of(gradient), variable)
            except (steps.NotOfTheBatch, TypeError, ValueError) as e:  # the last two: not a dense tensor
                line = steps.line_of_script(folder, getattr(e, "tensor", None))
                raise report.unsupported(
                    f"{line or script}: a gradient that no tape has computed is neither a sum nor a mean over the "
                    "examples of a batch, so the replicas cannot put it together from their parts: take it from a "
                    "tf.GradientTape, or remove `transparent: true`"
                ) from None
        return pairs

    return all_reduce


def _own_loop(script: str, folder: str) -> str:
    return (
        f"{steps.line_of_script(folder) or script}: this script trains in a loop of its own without strategy.run, "
        "which transparent cannot share among replicas: put the step into a train_step and call fit, or write the loop "
        "for a strategy and remove `transparent: true`"
    )


def _explained(gradient: Any, report: Reporter, script: str, folder: str) -> Any:
    """Replace TensorFlow's error for a gradient outside of a replica with one that says what to write instead."""
    try:
        return gradient()
    except ValueError as e:
        if "not available outside the replica context" not in str(e):
            raise
        raise report.unsupported(_own_loop(script, folder)) from e


def _refusing(apply: Any, report: Reporter, script: str, folder: str) -> Any:
    @functools.wraps(apply)
    def apply_in_replicas(self: Any, *args: Any, **kwargs: Any) -> Any:
        import tensorflow as tf

        if tf.distribute.has_strategy() and tf.distribute.in_cross_replica_context():
            raise report.unsupported(_own_loop(script, folder))
        return apply(self, *args, **kwargs)

    return apply_in_replicas
