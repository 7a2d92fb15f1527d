"""Proves in the first step of a fit that the replicas train what one process would, by a measurement.

The gradient of the batch is computed twice: as the replicas share it, and as one process computes it, from all
examples at once. On GPUs only so many examples are taken that all of them are as many as a replica's part of the batch,
and need no more memory. Nothing is changed by that. The step follows, and the comparison comes with its figures. If the
gradients differ, the run ends before its second step.
"""

from __future__ import annotations

import functools
import math
import sys

from orchestrator.task.transparent import step as steps
from orchestrator.task.transparent.replay import Course
from orchestrator.task.transparent.rules import Kinds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from orchestrator.task.transparent.reporter import Reporter

TOLERANCE = 1e-3
TOLERANCE_OF_HALVES = 5e-2
"""For sums of 16-bit numbers, and for GPUs, which round the numbers that they multiply."""
_LEAST = 1e-3
"""A weight's gradient is taken to be as long as this share of that of all weights, if it is shorter."""


class _Alone:
    """The context of a replica that computes for itself: what it would add up or gather is there already."""

    def __init__(self, context: Any) -> None:
        self._context = context

    def all_reduce(self, _operation: Any, values: Any, *_options: Any, **_named: Any) -> Any:
        return values

    def all_gather(self, value: Any, **_options: Any) -> Any:
        return value

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


class Proof:
    """The comparison of the first step of each fit of a model."""

    FIGURE = "orch_proof"
    """The name of the comparison among a step's figures."""

    def __init__(self, report: Reporter, folder: str) -> None:
        self._report = report
        self._folder = folder
        self.names: list[str] = []
        """Of the weights whose gradients are compared."""
        self._left_out: set[str] = set()
        self._tolerance = TOLERANCE

    def compared(
        self, make: Callable[..., steps.Step], kinds: Kinds, function: Callable[[Any], Any], data: Any
    ) -> Any:
        """Return, in a replica, by how much each gradient differs, and then the number of examples."""
        import tensorflow as tf

        if any(isinstance(leaf, (tf.RaggedTensor, tf.SparseTensor)) for leaf in tf.nest.flatten(data)):
            self._left_out.add("a batch with ragged or sparse tensors")
            return None
        if tf.config.list_logical_devices("GPU"):
            replicas = tf.distribute.get_strategy().num_replicas_in_sync
            data = tf.nest.map_structure(functools.partial(_first_rows, replicas), data)
        shared = make(kinds, data=data, is_proof=True)
        try:
            together = self._gradients(shared, function)
            whole = tf.nest.map_structure(
                lambda leaf: (
                    shared.gathered(leaf) if isinstance(leaf, tf.Tensor) and leaf.shape.rank else leaf
                ),
                shared.data,
            )
            with tf.control_dependencies([gradient for _, gradient in together]):
                alone = make(Kinds(), data=whole, is_proof=True, context=_Alone(shared.context))
                by_itself = self._gradients(alone, function)
        except Exception as e:  # a step that may not be computed twice must train all the same
            if self._report.refused is not None:
                raise
            self._left_out.add(f"{type(e).__name__}: {e!s:.200}")
            return None
        self._left_out = shared.left_out | alone.left_out
        self.names = [name for name, _ in together]
        if not together or len(together) != len(by_itself):
            self._left_out.add("steps whose gradients are of no tape")
            return None
        if tf.config.list_logical_devices("GPU") or any(g.dtype.size < 4 for _, g in (*together, *by_itself)):
            self._tolerance = TOLERANCE_OF_HALVES
        norms = tf.stack([_norm(gradient, tf) for _, gradient in by_itself])
        least = _LEAST * tf.norm(norms) + 1e-12
        differing = [
            _norm(a - tf.cast(b, a.dtype), tf) for (_, a), (_, b) in zip(together, by_itself, strict=True)
        ]
        return tf.concat([tf.stack(differing) / tf.maximum(norms, least), [shared.total]], 0)

    def _gradients(self, step: steps.Step, function: Callable[[Any], Any]) -> list[tuple[str, Any]]:
        import tensorflow as tf

        with steps.entered(step):
            function(step.data)
            step.at_end.clear()
        found = [(name, tf.convert_to_tensor(each)) for name, each in step.recorded or () if each is not None]
        return [(name, tf.cast(each, tf.float32) if each.dtype.size < 4 else each) for name, each in found]

    def judge(self, figures: Any) -> None:
        """Say what was found, or end the run."""
        left_out = f"; not compared: {', '.join(sorted(self._left_out))}" if self._left_out else ""
        if figures is None or steps.NOISE in self._left_out:
            self._report(
                "proof", f"the gradient of the first step is not proved to be that of one process{left_out}"
            )
            return
        *differing, examples = (float(each) for each in figures)
        if not any(map(math.isfinite, differing)):
            self._report("proof", "the gradient of the first step is not finite, and is not proved")
            return
        worst = max(range(len(differing)), key=lambda place: _size(differing[place]))
        if _size(differing[worst]) <= self._tolerance:
            self._report(
                "proof",
                f"proved equal at step 1: the gradients of {len(differing)} weights, of {examples:.0f} examples, are "
                f"those of one process (they differ by at most {differing[worst]:.1e} of their length{left_out})",
            )
            return
        raise self._report.unsupported(
            f"{steps.line_of_script(self._folder) or 'fit'}: the replicas do not train what one process would: in the "
            f"first step the gradient of {self.names[worst]} differs by {100 * differing[worst]:.3g} % of its length "
            f"from that of the whole batch{left_out}. So it ends before its second step. Something in the step depends "
            "on the batch as a whole, and is not seen to: `orch prove` compares more steps, and `prove: off` under "
            "`run` trains without this proof"
        )


def _first_rows(replicas: int, leaf: Any) -> Any:
    """Return so many examples of a replica that those of all are its part of the batch, and a multiple of 12."""
    import tensorflow as tf

    if not isinstance(leaf, tf.Tensor) or leaf.shape.rank == 0:
        return leaf
    rows = -(-tf.shape(leaf)[0] // replicas)
    return tf.ensure_shape(leaf[: tf.where(rows < 12, rows, rows - rows % 12)], [None, *leaf.shape[1:]])


def _size(number: float) -> float:
    """Return the number; infinity for what is none."""
    return number if number == number else float("inf")


def _norm(tensor: Any, tf: Any) -> Any:
    return tf.cast(tf.norm(tensor), tf.float32)


def of_first_steps(
    make: Callable[[Proof | None], Callable[[Any], Any]], proof: Proof
) -> Callable[[Any], Any]:
    """Return a function for the steps of fits of which the first one of each fit is proved.

    Args:
        make: returns the function of a step or several, with a proof or without.
        proof: of the model.
    """
    proving, ordinary = make(proof), make(None)
    proved: list[Course | None] = [None]

    @functools.wraps(ordinary)
    def function(iterator: Any) -> Any:
        course = Course.current
        if course is None or course is proved[0]:
            return ordinary(iterator)
        proved[0] = course
        logs = proving(iterator)
        proof.judge(logs.pop(Proof.FIGURE, None) if isinstance(logs, dict) else None)
        return logs

    return function


def install() -> None:
    """Have what is computed for a proof change no variable, and draw no mask of a dropout."""
    from tensorflow.python.distribute import values
    from tensorflow.python.ops import resource_variable_ops

    owners = (
        values.DistributedVariable,
        values.MirroredVariable,
        values.SyncOnReadVariable,
        resource_variable_ops.BaseResourceVariable,
    )
    for owner in owners:
        for name in ("assign", "assign_add", "assign_sub"):
            if name in vars(owner):
                setattr(owner, name, _unless_proving(vars(owner)[name], lambda variable: variable))
    random = sys.modules["keras.src.backend.tensorflow.random"]
    random.dropout = _unless_proving(random.dropout, lambda inputs: inputs, "Dropout")  # type: ignore[attr-defined]


def _unless_proving(function: Any, instead: Callable[[Any], Any], left_out: str = "") -> Any:
    @functools.wraps(function)
    def unless_proving(first: Any, *args: Any, **kwargs: Any) -> Any:
        step = steps.current()
        if step is None or not step.is_proof:
            return function(first, *args, **kwargs)
        if left_out:
            step.left_out.add(left_out)
        return instead(first)

    return unless_proving
