"""Gradients of a `train_step` that the script defines, and the refusal of custom training loops.

Optimizers sum the gradients of all replicas, because Keras divides its losses by their number. A loss that the script
computes by hand is a mean over one replica's part of the batch, and nothing divides it. The effective learning rate
would then grow with the number of replicas. So if no Keras loss was used in the same graph, the gradients are averaged.
"""

from __future__ import annotations

import functools
import sys
import weakref

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from orchestrator.runtime.transparent.said import Said


def install(library: str, strategy: Any, said: Said, script: str) -> None:
    """Patch the losses and optimizers of this Keras, and tf.GradientTape."""
    import tensorflow as tf

    scaled: weakref.WeakSet[Any] = weakref.WeakSet()
    tf.GradientTape.gradient = _explaining(tf.GradientTape.gradient, said, script)
    if library == "keras":
        losses: ModuleType = sys.modules["keras.src.losses.loss"]
        _mark(losses, scaled, tf)
        optimizer = sys.modules["keras.src.backend.tensorflow.optimizer"].TFOptimizer
        optimizer._all_reduce_sum_gradients = _averaging(
            optimizer._all_reduce_sum_gradients, scaled, strategy, said
        )
        optimizer.apply = _refusing(optimizer.apply, said, script)
    else:
        import importlib

        _mark(importlib.import_module("tf_keras.src.utils.losses_utils"), scaled, tf)
        utils: Any = importlib.import_module("tf_keras.src.optimizers.utils")
        utils.all_reduce_sum_gradients = _averaging(utils.all_reduce_sum_gradients, scaled, strategy, said)
        optimizer = sys.modules["tf_keras"].optimizers.Optimizer
        optimizer.apply_gradients = _refusing(optimizer.apply_gradients, said, script)


def _mark(losses: ModuleType, scaled: weakref.WeakSet[Any], tf: Any) -> None:
    scale = losses.scale_loss_for_distribution

    def scale_loss_for_distribution(value: Any) -> Any:
        scaled.add(tf.compat.v1.get_default_graph())
        return scale(value)

    losses.scale_loss_for_distribution = scale_loss_for_distribution  # type: ignore[attr-defined]


def _averaging(reduce: Any, scaled: weakref.WeakSet[Any], strategy: Any, said: Said) -> Any:
    def all_reduce(*args: Any) -> Any:
        import tensorflow as tf

        reduced = reduce(*args)
        if tf.compat.v1.get_default_graph() in scaled or tf.distribute.in_cross_replica_context():
            return reduced
        said(
            "gradients",
            "a train_step computes a loss of its own: its gradients are averaged over the replicas, not added up",
        )
        share = 1.0 / strategy.num_replicas_in_sync
        return [(_times(gradient, share, tf), variable) for gradient, variable in reduced]

    return all_reduce


def _times(gradient: Any, share: float, tf: Any) -> Any:
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values * share, gradient.indices, gradient.dense_shape)
    return gradient * share


def _own_loop(script: str) -> str:
    return (
        f"{script} trains in a loop of its own without strategy.run, which transparent cannot share among replicas: "
        "put the step into a train_step and call fit, or write the loop for a strategy and remove `transparent: true`"
    )


def _explaining(gradient: Any, said: Said, script: str) -> Any:
    """Replace TensorFlow's error for a gradient outside of a replica with one that names the way out."""

    @functools.wraps(gradient)
    def gradient_in_replicas(*args: Any, **kwargs: Any) -> Any:
        try:
            return gradient(*args, **kwargs)
        except ValueError as e:
            if "not available outside the replica context" not in str(e):
                raise
            raise said.unsupported(_own_loop(script)) from e

    return gradient_in_replicas


def _refusing(apply: Any, said: Said, script: str) -> Any:
    @functools.wraps(apply)
    def apply_in_replicas(self: Any, *args: Any, **kwargs: Any) -> Any:
        import tensorflow as tf

        if tf.distribute.has_strategy() and tf.distribute.in_cross_replica_context():
            raise said.unsupported(_own_loop(script))
        return apply(self, *args, **kwargs)

    return apply_in_replicas
