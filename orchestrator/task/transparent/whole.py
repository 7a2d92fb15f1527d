"""Computes a value of the whole batch that is no sum or mean over its examples, on each replica.

The operations between the value and what can be combined are made once more: of tensors with an entry for each example
the replicas send each other their rows, sums and means are added up. All replicas then have the value of the whole
batch. Its gradient is taken back to the same tensors, of which each replica continues with its own part.
"""

from __future__ import annotations

import math

from orchestrator.task.transparent.kinds import EACH, LOOSE, SAME, SHAPE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any


class NotOfTheBatch(Exception):
    """A value of the whole batch cannot be computed from what the replicas have; the message says why."""

    def __init__(self, tensor: Any, why: str) -> None:
        super().__init__(why)
        self.tensor = tensor


class Whole:
    """The value of one tensor for the whole batch."""

    def __init__(self, step: Any, tensor: Any) -> None:
        """Compute it. Raises NotOfTheBatch."""
        self._step = step
        self._leaves: list[tuple[Any, Any]] = []
        """What the value is computed from: of this replica, and of the whole batch."""
        self.bytes_per_example = 0
        self._tensor, self._has_python = tensor, False
        self.value = self._computed(tensor)
        step.kinds.set(self.value, SAME)

    def _computed(self, tensor: Any) -> Any:
        known: dict[Any, Any] = {}
        waiting = [tensor]
        while waiting:
            top = waiting[-1]
            if top.ref() in known:
                waiting.pop()
                continue
            leaf = self._leaf(top)
            if leaf is not None:
                known[top.ref()] = leaf
                continue
            missing = [each for each in top.op.inputs if each.ref() not in known]
            if missing:
                waiting += missing
                continue
            self._has_python |= top.op.type == "EagerPyFunc"
            outputs = _repeated(top.op, [known[each.ref()] for each in top.op.inputs])
            for output, again in zip(top.op.outputs, outputs, strict=True):
                known.setdefault(output.ref(), again)
        return known[tensor.ref()]

    def _leaf(self, tensor: Any) -> Any:
        """Return the whole batch's value of a tensor that can be combined; None: its inputs must be."""
        import tensorflow as tf

        step, kind = self._step, self._step.kinds.kind_of(tensor)
        if kind is LOOSE:
            raise NotOfTheBatch(tensor, "rows of a ragged or sparse tensor would have to be put together")
        if kind.name == "same":
            whole = tensor
        elif kind.name == EACH and kind.blocks == 1 and tensor.dtype.name != "variant":
            whole = step.gathered(tensor, kind.axis)
            self.bytes_per_example += _bytes_of(tensor, kind.axis)
        elif kind.name in ("sum", "mean", "mixed") and tensor.dtype.is_floating:
            whole = step.total_of(tensor)
        elif kind.name == SHAPE and kind.blocks == 1 and tensor.op.type == "Shape":
            added = tf.cast(step.total - step.examples, tensor.dtype)
            return tensor + tf.one_hot(kind.axis, tensor.shape[0], dtype=tensor.dtype) * added
        else:
            return None
        self._leaves.append((tensor, whole))
        return whole

    def starts(self) -> Iterator[tuple[Any, Any]]:
        """Yield tensors of this replica, and the gradient of the value with respect to each, to be added up."""
        import tensorflow as tf

        if self._has_python:  # its gradient is that of its last call, of whatever it was
            raise NotOfTheBatch(self._tensor, "a tf.py_function has no gradient for it")
        floats = (pair for pair in self._leaves if pair[1].dtype.is_floating and pair[0].op.type != "Const")
        leaves = {whole.ref(): (mine, whole) for mine, whole in floats}
        wholes = [whole for _, whole in leaves.values()]
        found = tf.gradients(self.value, wholes, stop_gradients=wholes) if wholes else []
        for (mine, _), gradient in zip(leaves.values(), found, strict=True):
            if gradient is None:
                continue
            dense, kind = tf.convert_to_tensor(gradient), self._step.kinds.kind_of(mine)
            if kind.name == EACH:
                yield mine, self._step.part_of(dense, mine, kind.axis)
                continue
            # All replicas have this gradient. Summands of `mine` are of different kinds, if it is mixed.
            for part, factor, part_kind in self._step.terms(mine):
                share = self._step.share(part_kind)  # none of it where a replica has no example
                yield part, shaped_like(dense * tf.cast(factor * share, dense.dtype), part)


def shaped_like(gradient: Any, tensor: Any) -> Any:
    """Return the gradient of a summand, which may have been broadcast: what its copies get is added up."""
    import tensorflow as tf

    gradient, count = tf.cast(gradient, tensor.dtype), tensor.shape.num_elements()
    if count is None or count != gradient.shape.num_elements():
        gradient += tf.zeros_like(tensor)
        axes, _ = tf.raw_ops.BroadcastGradientArgs(s0=tf.shape(tensor), s1=tf.shape(gradient))
        gradient = tf.reduce_sum(gradient, axes)
    return tf.reshape(gradient, tf.shape(tensor))


def _bytes_of(tensor: Any, axis: int) -> int:
    others = [int(size or 1) for place, size in enumerate(tensor.shape) if place != axis]
    return int(tensor.dtype.size) * math.prod(others)


_NOT_REPEATED = ("Assign", "Collective", "Nccl", "Placeholder", "Iterator", "Random")
_READ = ("LookupTableFindV2", "LookupTableSizeV2")
"""Of a table of words, which does not change."""


def _repeated(op: Any, inputs: list[Any]) -> list[Any]:
    """Make an operation once more, with other inputs, and return its outputs. Raises NotOfTheBatch."""
    import tensorflow as tf

    attributes = {name: op.node_def.attr[name] for name in op.node_def.attr if name not in _OF_THE_PLACE}
    why = ""
    if op.type.startswith(_NOT_REPEATED) or not inputs:
        why = f"{op.type} cannot be computed a second time"
    elif "_gradient_op_type" in attributes:
        why = "a gradient of its own (tf.custom_gradient) is that of the replica's part"
    elif op.graph is not tf.compat.v1.get_default_graph():
        why = "it is within a condition or a loop"
    elif (
        op.type not in _READ
        and op.op_def.is_stateful
        and any(each.dtype.name == "resource" for each in op.inputs)
    ):
        why = f"{op.type} may change a variable"
    if why:
        raise NotOfTheBatch(op.outputs[0], why)
    again = op.graph._create_op_internal(
        op.type, inputs, [output.dtype for output in op.outputs], attrs=attributes, op_def=op.op_def
    )
    return list(again.outputs)


_OF_THE_PLACE = ("_class", "_output_shapes", "_num_original_outputs")
