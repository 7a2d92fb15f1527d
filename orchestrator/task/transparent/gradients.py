"""Gradients of the global batch, in any step, and the refusal of custom training loops.

`tape.gradient` with respect to weights returns the gradient of the global batch on every replica: each term of the
target counts with its share (see `step.py`), and the results are added up over the replicas at once. So all that
follows equals that of a single process: clipping in the script or in the optimizer, norms, accumulation, and loss
scales. The optimizers' own all-reduce is left out.
"""

from __future__ import annotations

import contextlib
import functools
import sys

from orchestrator.task.keras import keras3_conditions
from orchestrator.task.transparent import step as steps
from orchestrator.task.transparent.kinds import SAME
from orchestrator.task.transparent.whole import NotOfTheBatch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from orchestrator.task.transparent.reporter import Reporter
    from orchestrator.task.transparent.step import Step


def install(library: str, report: Reporter, script: str, folder: str) -> None:
    """Patch tf.GradientTape, and the losses and optimizers of this Keras."""
    import tensorflow as tf

    _undivided_in_steps(library)
    context = tf.distribute.ReplicaContext
    context.all_reduce = _equal_on_all(context.all_reduce)
    tf.nn.ctc_loss = steps.of_each_example(tf.nn.ctc_loss)
    tf.GradientTape.gradient = _of_the_global_batch(tf.GradientTape.gradient, report, script, folder)
    functions: Any = sys.modules[f"{library}.src.losses" + (".losses" if library == "keras" else "")]
    convert = "convert_binary_labels_to_hinge" if library == "keras" else "_maybe_convert_labels"
    setattr(functions, convert, steps.of_the_whole_batch(getattr(functions, convert)))
    if library == "keras":
        losses: Any = sys.modules["keras.src.losses.loss"]
        optimizer = sys.modules["keras.src.backend.tensorflow.optimizer"].TFOptimizer
        reduce = optimizer._all_reduce_sum_gradients
        optimizer._all_reduce_sum_gradients = _already_reduced(reduce, report, script, folder)
        scaling: Any = sys.modules["keras.src.optimizers.loss_scale_optimizer"].LossScaleOptimizer
        for each in (optimizer, scaling):
            each.apply = _refusing(each.apply, report, script, folder)
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


def _equal_on_all(all_reduce: Any) -> Any:
    @functools.wraps(all_reduce)
    def all_reduced(self: Any, *args: Any, **kwargs: Any) -> Any:
        import tensorflow as tf

        results = all_reduce(self, *args, **kwargs)
        if (step := steps.current()) is not None:
            for part in tf.nest.flatten(results, expand_composites=True):
                step.kinds.set(part, SAME)
        return results

    return all_reduced


def _unscaled_in_steps(scale: Any) -> Any:
    @functools.wraps(scale)
    def scale_outside(value: Any) -> Any:
        return value if steps.current() is not None else scale(value)

    return scale_outside


class _Instead:
    """A module, and what stands instead of some of it for those who read it by this."""

    def __init__(self, module: Any, **others: Any) -> None:
        self.__dict__.update(others, _module=module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def _undivided_in_steps(library: str) -> None:
    """Let TensorFlow's `compute_average_loss` and `scale_regularization_loss` see one replica within a step.

    They divide by the number of replicas, whose results the script would then add up. In a step the rule of shares does
    that. What they read is replaced, since a script may hold the functions by many names. tf_keras multiplies by it the
    figure of a loss that is a sum.
    """
    import importlib
    import types

    from tensorflow.python.ops import nn_impl_distribute

    original = nn_impl_distribute.distribute_lib

    def get_strategy() -> Any:
        return (
            original.get_strategy()
            if steps.current() is None
            else types.SimpleNamespace(num_replicas_in_sync=1)
        )

    nn_impl_distribute.distribute_lib = _Instead(original, get_strategy=get_strategy)
    if library == "tf_keras":
        figures: Any = importlib.import_module("tf_keras.src.engine.compile_utils")
        instead = _Instead(figures.tf.distribute, get_strategy=get_strategy)
        figures.tf = _Instead(figures.tf, distribute=instead)


def _of_the_global_batch(gradient: Any, report: Reporter, script: str, folder: str) -> Any:
    @functools.wraps(gradient)
    def of_the_global_batch(
        tape: Any, target: Any, sources: Any, output_gradients: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        import tensorflow as tf

        step = steps.current()
        if step is None:
            return _explained(
                lambda: gradient(tape, target, sources, output_gradients, *args, **kwargs),
                report,
                script,
                folder,
            )
        if output_gradients is None and step.replicas > 1:
            try:
                with _not_recording(tape):
                    pairs = [pair for each in tf.nest.flatten(target) for pair in _starts(step, each)]
                target, output_gradients = map(list, zip(*pairs, strict=True)) if pairs else ([], [])
            except NotOfTheBatch as e:
                raise report.unsupported(_refusal(e, script, folder)) from None
        gradients = gradient(tape, target, sources, output_gradients, *args, **kwargs)
        if not _are_weights(sources):
            return gradients
        added = _added_up(step, gradients)
        if step.is_proof:
            step.record(zip(_names(sources), tf.nest.flatten(added), tf.nest.flatten(gradients), strict=True))
        return added

    return of_the_global_batch


def _starts(step: Step, target: Any) -> list[tuple[Any, Any]]:
    import tensorflow as tf
    from tensorflow.python.eager import record

    tensor = tf.convert_to_tensor(target)
    is_shared = all(kind.name in steps.SHARED for _, _, kind in step.terms(tensor))
    if not is_shared and record.could_possibly_record():
        raise NotOfTheBatch(tensor, "a gradient of its gradient is asked for")
    return list(step.starts(tensor))


@contextlib.contextmanager
def _not_recording(tape: Any) -> Iterator[None]:
    """Have a tape not record how its own gradient is found."""
    is_recording = tape._recording
    if is_recording:
        tape._pop_tape()
    try:
        yield
    finally:
        if is_recording and tape._persistent:
            tape._push_tape()


def _are_weights(sources: Any) -> bool:
    import tensorflow as tf

    flat = tf.nest.flatten(sources)
    return bool(flat) and not any(tf.is_symbolic_tensor(source) for source in flat)


def _names(weights: Any) -> list[str]:
    import tensorflow as tf

    return [getattr(weight, "path", weight.name) for weight in tf.nest.flatten(weights)]


def _added_up(step: Step, gradients: Any) -> Any:
    """Return the gradients added up over all replicas."""
    import tensorflow as tf

    flat = tf.nest.flatten(gradients)
    there = [step.guarded(gradient) for gradient in flat if gradient is not None]
    counting, step.counting = step.counting, None
    row = []
    if counting is not None and step.shares is not None:
        step.counted = counting()
        row = step.shares.row(step.context)
    # The first goes behind all others in what is sent.
    reduced = iter(step.context.all_reduce(tf.distribute.ReduceOp.SUM, [*row, *there]) if there else ())
    if row:
        step.shares.tell(next(reduced), step.context)
    result = [None if gradient is None else next(reduced) for gradient in flat]
    for gradient in result:
        for part in tf.nest.flatten(gradient, expand_composites=True):
            if part is not None:
                step.kinds.set(part, SAME)
    return tf.nest.pack_sequence_as(gradients, result)


def _refusal(error: Exception, script: str, folder: str) -> str:
    line = steps.line_of_script(folder, getattr(error, "tensor", None))
    return (
        f"{line or script}: this is neither a sum nor a mean over the examples of a batch, and cannot be computed on "
        f"the whole batch either ({error}): write it as sums and means over examples, or remove `transparent: true`"
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
        for place, (gradient, variable) in enumerate(pairs):
            try:
                if _is_by_hand(step, gradient):
                    pairs[place] = (step.total_of(gradient), variable)
            except (NotOfTheBatch, TypeError, ValueError) as e:  # the last two: not a dense tensor
                raise report.unsupported(_refusal(e, script, folder)) from None
        return pairs

    return all_reduce


def _is_by_hand(step: Step, gradient: Any) -> bool:
    """Return whether a gradient is that of this replica's part: no tape has computed it."""
    values = getattr(gradient, "values", gradient)
    return values is not None and step.kinds.kind_of(values).name not in ("same", "count")


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

        if (step := steps.current()) is not None and step.is_proof:
            weights = (
                args[1] if len(args) > 1 else kwargs.get("trainable_variables") or self._trainable_variables
            )
            for name, gradient in zip(_names(weights), args[0] if args else kwargs["grads"], strict=False):
                if _is_by_hand(step, gradient):
                    step.record([(name, step.total_of(gradient), gradient)])
            return None
        if tf.distribute.has_strategy() and tf.distribute.in_cross_replica_context():
            raise report.unsupported(_own_loop(script, folder))
        return apply(self, *args, **kwargs)

    return apply_in_replicas
