"""Larger shares without more memory: a share is taken in parts, whose gradients are added up and applied once.

With `hold_batch`, the replicas that are left have larger shares of the same batch than those of all workers had. So
that a share does not need more memory than planned, a step goes through it in parts, one after the other, and keeps of
each the gradients only. A term of the loss counts in each part with that part's share of the whole batch: so the parts
add up to the gradient of the batch, whatever their sizes are.

This is done in Keras's own `train_step`. A script's own may do with its gradients what it likes: it gets its share as
a whole.
"""

from __future__ import annotations

import functools
import sys
import threading

from orchestrator.runtime.transparent.kinds import SAME

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from orchestrator.runtime.transparent.kinds import Kind
    from orchestrator.runtime.transparent.said import Said
    from orchestrator.runtime.transparent.step import Step

_thread = threading.local()


class Parts:
    """How many parts a share has, and whether this script's steps can be taken so."""

    def __init__(self, said: Said) -> None:
        self.count = 1
        self.said = said

    def are_for(self, step_function: Any, trainer: Any) -> bool:
        """Return whether the steps of this function are taken in parts."""
        if self.count == 1 or getattr(step_function, "__name__", "") != "train_step":
            return False
        if getattr(step_function, "__func__", None) is trainer.train_step:
            self.said(
                "parts",
                f"a replica takes its share in {self.count} parts, one after the other, and applies the sum of their "
                "gradients: so it needs no more memory than with all replicas",
            )
            return True
        self.said(
            "parts",
            "the script's own train_step takes a replica's larger share as a whole, which needs more memory: "
            "`on_shrink: scale_lr` does not",
        )
        return False

    def refused(self) -> bool:
        """Give up where a step could not be traced in parts. Return whether it can be traced anew."""
        if self.count == 1 or not _thread_says_no():
            return False
        self.count = 1
        self.said(
            "parts",
            "the loss is a mean over what a mask leaves, which parts do not know of each other: a replica takes its "
            "larger share as a whole",
        )
        return True


class Taking:
    """The gradients of a replica's parts so far."""

    def __init__(self, count: int, total: Any) -> None:
        self.count = count
        self.total = total
        """The examples of the whole batch, in all parts of all replicas."""
        self.part = 0
        self.sums: list[Any] = []
        self.is_applying = False

    def add(self, gradients: list[Any]) -> None:
        import tensorflow as tf

        dense = [None if each is None else tf.convert_to_tensor(each) for each in gradients]
        if not self.sums:
            self.sums = dense
            return
        self.sums = [
            new if old is None else old if new is None else old + new
            for old, new in zip(self.sums, dense, strict=True)
        ]

    def reduced(self, step: Step) -> list[Any]:
        """Return the sums over all parts of all replicas."""
        import tensorflow as tf

        there = [each for each in self.sums if each is not None]
        reduced = iter(step.context.all_reduce(tf.distribute.ReduceOp.SUM, there) if there else ())
        found = [None if each is None else next(reduced) for each in self.sums]
        for each in found:
            if each is not None:
                step.kinds.set(each, SAME)
        return found


def taking() -> Taking | None:
    """Return what this thread takes in parts."""
    found: Taking | None = getattr(_thread, "taking", None)
    return found


def of_a_figure(kind: Kind, total: Any, *, adds_up: bool) -> Any:
    """Return by what a figure of a part is multiplied, so that all parts have that of the batch. 1 outside of parts.

    Args:
        total: the examples of this part, of all replicas.
        adds_up: whether the figures of the parts are added up; else their mean by examples is taken.
    """
    import tensorflow as tf

    found = taking()
    if found is None:
        return 1.0
    is_mean = kind.name in ("same", "mean", "part")
    if adds_up:
        return total / found.total if is_mean else 1.0
    return 1.0 if is_mean else tf.math.divide_no_nan(found.total, total)


_refusals: list[bool] = []


def refuse() -> None:
    """Note that the step that is traced cannot be taken in parts."""
    _refusals.append(True)


def _thread_says_no() -> bool:
    found = bool(_refusals)
    _refusals.clear()
    return found


def in_parts(step: Callable[[Any], Any], parts: Parts) -> Callable[[Any], Any]:
    """Return a step that goes through its batch in parts. `step` is what `step.install` returns."""
    import tensorflow as tf

    def step_in_parts(data: Any) -> Any:
        if tf.executing_eagerly():
            return step(data)
        leaves = [leaf for leaf in tf.nest.flatten(data) if leaf is not None]
        rows = next((tf.shape(leaf)[0] for leaf in leaves if _has_rows(leaf)), None)
        if parts.count == 1 or rows is None or not all(map(_is_dense, leaves)):
            return step(data)
        context = tf.distribute.get_replica_context()
        total = context.all_reduce(tf.distribute.ReduceOp.SUM, tf.cast(rows, tf.float32))
        found = Taking(parts.count, total)
        logs: Any = None
        for place in range(parts.count):
            found.part = place
            before = [each for each in found.sums if each is not None]
            with tf.control_dependencies(before):  # one after the other: else all would be in memory at once
                part = tf.nest.map_structure(functools.partial(_part, rows, place, parts.count), data)
                _thread.taking = found
                try:
                    logs = step(part)
                finally:
                    _thread.taking = None
        return logs

    decorated: Callable[[Any], Any] = tf.autograph.experimental.do_not_convert(step_in_parts)
    return decorated


def _is_dense(leaf: Any) -> bool:
    import tensorflow as tf

    return isinstance(leaf, tf.Tensor) and leaf.shape.rank is not None


def _has_rows(leaf: Any) -> bool:
    import tensorflow as tf

    return isinstance(leaf, tf.Tensor) and bool(leaf.shape.rank)


def _part(rows: Any, place: int, count: int, leaf: Any) -> Any:
    """Return a part of the rows. What has none is the same for all parts."""
    if not _has_rows(leaf):
        return leaf
    return leaf[rows * place // count : rows * (place + 1) // count]


def install() -> None:
    """Patch the optimizers of Keras 3: in a part that is not the last one they keep the gradients."""
    plain: Any = sys.modules["keras.src.backend.tensorflow.optimizer"].TFOptimizer
    scaling: Any = sys.modules["keras.src.optimizers.loss_scale_optimizer"].LossScaleOptimizer
    for owner in (plain, scaling):
        owner.apply = _applying_the_sum(owner.apply)


def _applying_the_sum(apply: Any) -> Any:
    from orchestrator.runtime.transparent import step as steps

    @functools.wraps(apply)
    def apply_the_sum(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        found, step = taking(), steps.current()
        if found is None or step is None or found.is_applying:
            return apply(self, grads, trainable_variables)
        found.add(list(grads))
        if found.part + 1 < found.count:
            return None
        found.is_applying = True
        try:
            return apply(self, found.reduced(step), trainable_variables)
        finally:
            found.is_applying = False

    return apply_the_sum
