"""A replica's training step, and how the replicas' values are combined into the values of the global batch.

All gradients and metrics that a script computes in a step are those of the global batch. Each replica's value is
multiplied by its share (`Step.share`), so that the sum over the replicas is what a single process would compute.
Keras's own division of losses by the number of replicas is switched off within a step.
"""

from __future__ import annotations

import contextlib
import functools
import linecache
import os
import threading
import traceback
import types

from orchestrator.both.script import is_of_script
from orchestrator.task.transparent.kinds import COUNT, EACH, LOOSE, SAME, SHAPE, each
from orchestrator.task.transparent.rules import Kinds
from orchestrator.task.transparent.strategy import out_of_scope
from orchestrator.task.transparent.whole import NotOfTheBatch, Whole, shaped_like

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    from orchestrator.task.transparent.kinds import Kind
    from orchestrator.task.transparent.reporter import Reporter

NOISE = "what each replica draws or finds for itself"
"""What is left out of a proof so that nothing is proved."""

_thread = threading.local()
_tracing = 0
"""The number of replicas that trace a step. Keras traces parts of it in other threads, where `current` is None."""
_proving = 0
"""How many of them trace it for a proof."""


def current() -> Step | None:
    """Return the step that this thread traces; None if it traces none."""
    step: Step | None = getattr(_thread, "step", None)
    return step


def within_any() -> bool:
    """Return whether any replica traces a step."""
    return _tracing > 0


class Step:
    """A replica's step: its data, its number of examples, and the total number of all replicas."""

    def __init__(
        self,
        kinds: Kinds,
        strategy: Any,
        data: Any,
        report: Reporter | None = None,
        folder: str = "",
        *,
        is_proof: bool = False,
        context: Any = None,
        shares: Any = None,
        adds_up: bool = False,
    ) -> None:
        import tensorflow as tf

        self.kinds = kinds
        self.strategy = strategy
        self._report = report
        self._folder = folder
        self.replicas = strategy.num_replicas_in_sync if context is None else 1
        self.context = context or tf.distribute.get_replica_context()
        self.adds_up = adds_up
        """Whether this Keras adds up what a step returns over the replicas, as tf_keras does."""
        self.is_proof = is_proof
        """Whether it is computed for a proof only, and changes no variable; with a context, by each replica alone."""
        self.left_out: set[str] = set()
        """What of the step is not compared in a proof."""
        self.recorded: list[tuple[str, Any]] = []
        """The gradients with respect to weights that a proof compares, by their names."""
        self.lengths: list[Any] = []
        """How long this replica's part of each of these is."""
        self.data = tf.nest.map_structure(self._without_size, data)
        first = next((leaf for leaf in tf.nest.flatten(self.data) if _rows(leaf, tf) is not None), None)
        self.may_be_empty = not any(_known_rows(leaf) for leaf in tf.nest.flatten(data))
        """Whether this replica may have no example: the last batch may have fewer examples than there are replicas."""
        self.rows = tf.constant(1) if first is None else _rows(first, tf)
        self.examples = tf.cast(self.rows, tf.float32)
        if shares is None:
            self.total = self.context.all_reduce(tf.distribute.ReduceOp.SUM, self.examples)
        else:
            self.total = shares.sum_of(self.examples, self.context)
        self.shares = shares
        self.counting: Callable[[], Any] | None = None
        """Counts the step's metrics, and returns the figures, once its forward pass is done (see `shares.py`)."""
        self.counted: Any = None
        """The figures, if they were counted before the gradients were summed up."""
        self.draws = 0
        """How many random tensors this step has drawn with `tf.random`."""
        self._gathered: dict[Any, Any] = {}
        """The tensors of the whole batch, by the reference of this replica's part."""
        self.wholes: dict[Any, Whole] = {}
        self.at_end: list[Callable[[], object]] = []
        self.own_statistics = False
        """Whether the layer that is being called keeps statistics of its replica's part, like BatchNormalization."""
        for tensor in (self.rows, self.examples):
            kinds.set(tensor, COUNT)
        kinds.set(self.total, SAME)

    def _without_size(self, leaf: Any) -> Any:
        """Make the number of rows unknown: a constant 32 would not show that a script divides by the batch size."""
        import tensorflow as tf

        if isinstance(leaf, tf.Tensor):
            if leaf.shape.rank and leaf.shape[0] is not None:
                leaf = tf.compat.v1.placeholder_with_default(leaf, [None, *leaf.shape[1:]])
            if leaf.shape.rank != 0:
                self.kinds.set(leaf, each())
        elif leaf is not None:
            for part in tf.nest.flatten(leaf, expand_composites=True):
                self.kinds.set(part, LOOSE)
        return leaf

    def terms(self, tensor: Any) -> list[tuple[Any, Any, Kind]]:
        """Split a tensor into summands of a single kind, with factors. One that is OTHER cannot be shared as it is."""
        summands, waiting = [], [(tensor, 1.0)]
        while waiting:
            each_tensor, factor = waiting.pop()
            kind = self.kinds.kind_of(each_tensor)
            if kind.name == "mixed":
                waiting += _summands(each_tensor, factor, self.kinds)
            else:
                summands.append((each_tensor, factor, kind))
        return summands

    def share(self, kind: Kind) -> Any:
        """Return the weight of a replica's value of this kind in the sum over all replicas."""
        import tensorflow as tf

        if kind.name not in ("same", "mean"):
            return 1.0
        return tf.math.divide_no_nan(self.examples, self.total)

    def starts(self, target: Any) -> Iterator[tuple[Any, Any]]:
        """Yield where a gradient of the whole batch starts on this replica: tensors, and the gradient of each.

        Raises NotOfTheBatch.
        """
        import tensorflow as tf

        for tensor, factor, kind in self.terms(target):
            if kind.name in SHARED:
                scale = tf.cast(factor, tensor.dtype) * tf.cast(self.share(kind), tensor.dtype)
                start = tf.ones_like(target, tensor.dtype) * scale
                yield tensor, start if tensor is target else shaped_like(start, tensor)
            else:
                for part, gradient in self.whole(tensor).starts():
                    yield part, gradient * tf.cast(factor, gradient.dtype)

    def whole(self, tensor: Any) -> Whole:
        """Return the value of a tensor for the whole batch, computed by each replica. Raises NotOfTheBatch."""
        if tensor.ref() not in self.wholes:
            whole = self.wholes[tensor.ref()] = Whole(self, tensor)
            if self._report is not None and self.replicas > 1 and whole.bytes_per_example:
                line = line_of_script(self._folder, tensor)
                self._report(
                    "gather",
                    f"{line or tensor.op.type}: no sum or mean over the examples of a batch: each replica computes it "
                    f"on the whole batch, and sends the others {whole.bytes_per_example} bytes for each example",
                )
        return self.wholes[tensor.ref()]

    def figure(self, tensor: Any) -> Any:
        """Return a scalar whose mean over the replicas is the value for the global batch. Raises NotOfTheBatch."""
        import tensorflow as tf

        if self.replicas == 1:
            return tensor
        value = tf.zeros([], tensor.dtype)
        for part, factor, kind in self.terms(tensor):
            if kind.name in SHARED:
                weight = tf.cast(self.share(kind) * float(self.replicas), tensor.dtype)
                mine = self.guarded(tf.cast(part, tensor.dtype)) * weight
            else:
                mine = tf.cast(self.whole(part).value, tensor.dtype)
            value += mine * tf.cast(factor, tensor.dtype)
        self.kinds.set(value, SAME)
        return value

    def total_of(self, tensor: Any) -> Any:
        """Return the value of a tensor for the global batch, on every replica. Raises NotOfTheBatch."""
        import tensorflow as tf

        shared, totals = [], []
        for part, factor, kind in self.terms(tensor):
            scale = tf.cast(factor, tensor.dtype)
            if kind.name in ("same", "sum", "mean"):
                weight = tf.cast(self.share(kind), tensor.dtype)
                shared.append(self.guarded(tf.cast(part, tensor.dtype)) * weight * scale)
            else:
                totals.append(tf.cast(self.whole(part).value, tensor.dtype) * scale)
        if shared:
            totals.append(self.context.all_reduce(tf.distribute.ReduceOp.SUM, sum(shared[1:], shared[0])))
        total = sum(totals[1:], totals[0])
        self.kinds.set(total, SAME)
        return total

    def gathered(self, tensor: Any, axis: int = 0) -> Any:
        """Return the rows of a tensor of all replicas, on every replica: the tensor of the whole batch."""
        import tensorflow as tf

        if tensor.ref() in self._gathered:
            return self._gathered[tensor.ref()]
        if tensor.dtype.name == "string":
            self._gathered[tensor.ref()] = self._texts(tensor, axis)
            return self._gathered[tensor.ref()]
        sent = tensor if tensor.dtype.name in _SENT else _as_sent(tensor)
        devices = self.strategy.extended.worker_devices
        replica = tf.get_static_value(tf.convert_to_tensor(self.context.replica_id_in_sync_group))
        with tf.device(devices[int(replica) % len(devices)]):  # TensorFlow must know where it gathers to
            whole = tf.cast(self.context.all_gather(tf.identity(sent), axis=axis), tensor.dtype)
        whole.set_shape([None if place == axis else size for place, size in enumerate(tensor.shape)])
        self._gathered[tensor.ref()] = whole
        self.kinds.set(whole, SAME)
        return whole

    def _texts(self, tensor: Any, axis: int) -> Any:
        """Return the texts of all replicas, which are sent as the numbers of their bytes."""
        import tensorflow as tf

        lengths = tf.strings.length(tensor)
        most = tf.reduce_max(
            self.gathered(tf.reshape(tf.reduce_max(tf.pad(tf.reshape(lengths, [-1]), [[1, 0]])), [1]))
        )
        numbers = tf.raw_ops.DecodePaddedRaw(
            input_bytes=tensor, fixed_length=tf.maximum(most, 1), out_type=tf.uint8
        )
        is_of_text = tf.range(tf.maximum(most, 1)) < self.gathered(lengths, axis)[..., None]
        every = tf.gather(
            [bytes([number]) for number in range(256)], self.gathered(tf.cast(numbers, tf.int32), axis)
        )
        whole = tf.strings.reduce_join(tf.where(is_of_text, every, b""), axis=-1)
        whole.set_shape([None if place == axis else size for place, size in enumerate(tensor.shape)])
        self.kinds.set(whole, SAME)
        return whole

    def part_of(self, whole: Any, mine: Any, axis: int = 0) -> Any:
        """Return the rows of a tensor of the whole batch that belong to this replica, as those of `mine` do."""
        import tensorflow as tf

        counts, place = self.gathered(tf.shape(mine)[axis : axis + 1]), self.context.replica_id_in_sync_group
        begin = tf.reduce_sum(counts[:place])
        return tf.gather(whole, tf.range(begin, begin + counts[place]), axis=axis)

    def record(self, found: Iterable[tuple[str, Any, Any]]) -> None:
        """Remember gradients for a proof: the name of the weight, the gradient, and this replica's part of it."""
        import tensorflow as tf

        for name, gradient, part in found:
            if gradient is not None:
                self.recorded.append((name, tf.convert_to_tensor(gradient)))
                length = tf.norm(tf.convert_to_tensor(self.guarded(part)))
                self.lengths.append(tf.cast(length, tf.float32))

    def guarded(self, tensor: Any) -> Any:
        """Return the tensor, or zeros if the replica has no example, since an empty mean is NaN."""
        import tensorflow as tf

        if not self.may_be_empty:
            return tensor
        if isinstance(tensor, tf.IndexedSlices):
            return tf.IndexedSlices(self.guarded(tensor.values), tensor.indices, tensor.dense_shape)
        return tf.where(self.rows > 0, tensor, tf.zeros_like(tensor))


def of_each_example(compute: Callable[..., Any], place: int = 0) -> Callable[..., Any]:
    """Say of a function that its results have a row for each example of an argument, whatever its operations are."""

    @functools.wraps(compute)
    def computing(*args: Any, **kwargs: Any) -> Any:
        import tensorflow as tf

        results, step = compute(*args, **kwargs), current()
        if step is None:
            return results
        flat = tf.nest.flatten([*args, *kwargs.values()][place:])
        kinds = [step.kinds.kind_of(leaf) for leaf in flat if tf.is_symbolic_tensor(leaf)]
        kinds = [kind for kind in kinds if kind.name not in ("same", "count", SHAPE)]
        if kinds and kinds[0].name == EACH and all(kind.like(kinds[0]) for kind in kinds):
            for leaf in filter(tf.is_symbolic_tensor, tf.nest.flatten(results)):
                step.kinds.set(leaf, kinds[0])
        return results

    return computing


def of_the_whole_batch(compute: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Have a function of a few values for each example look at those of the whole batch, such as at all labels."""

    @functools.wraps(compute)
    def computing(values: Any) -> Any:
        step = current()
        if step is None or step.replicas == 1 or step.kinds.kind_of(values).name != EACH:
            return compute(values)
        kind = step.kinds.kind_of(values)
        mine = step.part_of(compute(step.gathered(values, kind.axis)), values, kind.axis)
        step.kinds.set(mine, kind)
        return mine

    return computing


def _known_rows(leaf: Any) -> int:
    shape = getattr(leaf, "shape", None)
    return int(shape[0] or 0) if shape is not None and shape.rank else 0


def _rows(leaf: Any, tf: Any) -> Any:
    if isinstance(leaf, tf.RaggedTensor):
        return tf.cast(leaf.nrows(), tf.int32)
    if isinstance(leaf, tf.SparseTensor):
        return tf.cast(leaf.dense_shape[0], tf.int32)
    return tf.shape(leaf)[0] if isinstance(leaf, tf.Tensor) and leaf.shape.rank != 0 else None


SHARED = ("same", "count", "sum", "mean", EACH)
"""The kinds of which each replica's value is a summand of the whole batch's, if it has its share."""
_SENT = ("float16", "float32", "float64", "int32", "int64")
"""The types that TensorFlow's collectives gather."""


def _as_sent(tensor: Any) -> Any:
    import tensorflow as tf

    if tensor.dtype.is_floating:
        return tf.cast(tensor, tf.float32)
    if tensor.dtype.is_bool or tensor.dtype.is_integer:
        return tf.cast(tensor, tf.int32)
    raise NotOfTheBatch(tensor, f"values of the type {tensor.dtype.name} cannot be sent")


def _summands(tensor: Any, factor: Any, kinds: Kinds) -> list[tuple[Any, Any]]:
    """Return the direct summands of a mixed tensor, with their factors."""
    import tensorflow as tf

    op, inputs = tensor.op, list(tensor.op.inputs)
    if op.type in ("AddV2", "Add", "AddN"):
        return [(part, factor) for part in inputs]
    if op.type == "Sub":
        return [(inputs[0], factor), (inputs[1], _times(factor, -1.0, tf))]
    if op.type == "Neg":
        return [(inputs[0], _times(factor, -1.0, tf))]
    if op.type in ("Identity", "Cast", "Reshape", "Squeeze", "Snapshot", "CheckNumerics"):
        return [(inputs[0], factor)]
    if op.type == "Mul":
        a, b = inputs if kinds.kind_of(inputs[0]).name == "same" else reversed(inputs)
        return [(b, _times(factor, a, tf))]
    if op.type in ("RealDiv", "Div", "DivNoNan"):
        return [(inputs[0], _times(factor, tf.math.divide_no_nan(tf.ones_like(inputs[1]), inputs[1]), tf))]
    if op.type in ("Sum", "Mean") and inputs[0].op.type == "Pack" and tensor.shape.rank == 0:
        parts = list(inputs[0].op.inputs)
        return [(part, _times(factor, 1.0 if op.type == "Sum" else 1.0 / len(parts), tf)) for part in parts]
    raise NotOfTheBatch(tensor, f"{op.type} is not taken apart")


def _times(a: Any, b: Any, tf: Any) -> Any:
    if isinstance(a, float):
        return b if a == 1.0 else b * a
    return a * (b if isinstance(b, float) else tf.cast(b, a.dtype))


def install(
    library: str, strategy: Any, report: Reporter, folder: str
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Patch this Keras, and return a decorator that makes a step of a function that takes a batch."""
    from tensorflow.python.distribute import values

    # Python cannot read a variable of a strategy, as in `float(optimizer.learning_rate)`.
    values.DistributedVariable.__int__ = lambda self: int(self.numpy())
    values.DistributedVariable.__float__ = lambda self: float(self.numpy())
    if library == "keras":
        _create_variables_outside(strategy)
    _inline_functions()
    kinds: list[Kinds] = []

    def stepping(function: Callable[..., Any], atomic: Any = None, proof: Any = None) -> Callable[..., Any]:
        sums = library != "keras"
        make = functools.partial(Step, strategy=strategy, report=report, folder=folder, adds_up=sums)
        return _stepping(explained(function, report, folder), make, kinds, atomic, proof)

    return stepping


def explained(function: Callable[..., Any], report: Reporter, folder: str) -> Callable[..., Any]:
    """Explain the error of a step that uses its batch size as a constant, and say what to write instead."""

    @functools.wraps(function)
    def explaining(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except (TypeError, ValueError, RuntimeError) as e:
            first = e.__context__ or e  # Keras makes another error of one in the building of a model
            line = innermost_line(traceback.extract_tb(first.__traceback__), folder)
            if not line or not any(words in str(e) for words in _NO_NUMBER):
                raise
            raise report.unsupported(
                f"{line}: the number of examples in a batch is no constant here, since each replica has its own part "
                "of the batch: write `tf.shape(x)[0]` for it, or remove `transparent: true`"
            ) from e

    return explaining


_NO_NUMBER = ("len is not well defined", "None values not supported", "NoneType")


def _stepping(
    function: Callable[..., Any], make: Callable[..., Step], kinds: list[Kinds], atomic: Any, proof: Any
) -> Callable[..., Any]:
    import tensorflow as tf

    @functools.wraps(function)
    def step_of_a_replica(data: Any) -> Any:
        if tf.executing_eagerly():
            return function(data)
        # All replicas of a process share the kinds, since what one reads may come from another.
        if not kinds or not within_any():
            kinds[:] = [Kinds()]
        converted = tf.__internal__.autograph.tf_convert(
            function, tf.__internal__.autograph.control_status_ctx()
        )
        if proof is not None:
            compared = proof.compared(make, kinds[0], converted, data)
            with tf.control_dependencies([] if compared is None else [compared]):
                outputs = of_a_replica(converted, data)
            is_told = isinstance(outputs, dict) and compared is not None
            return {**outputs, proof.FIGURE: compared} if is_told else outputs
        return of_a_replica(converted, data)

    def of_a_replica(converted: Any, data: Any) -> Any:
        begin = atomic.begin() if atomic is not None else 0
        shares = atomic.shares if atomic is not None else None
        with entered(make(kinds[0], data=data, shares=shares)) as step:
            outputs = converted(step.data)
            for action in step.at_end:
                action()
            outputs = tf.nest.map_structure(functools.partial(_output, step), outputs)
            return outputs if atomic is None else atomic.finish(outputs, begin)

    decorated: Callable[..., Any] = tf.autograph.experimental.do_not_convert(step_of_a_replica)
    return decorated


@contextlib.contextmanager
def entered(step: Step) -> Iterator[Step]:
    global _tracing, _proving
    _thread.step, _tracing, _proving = step, _tracing + 1, _proving + step.is_proof
    try:
        yield step
    finally:
        _thread.step, _tracing, _proving = None, _tracing - 1, _proving - step.is_proof


def is_proof() -> bool:
    """Return whether what is traced is for a proof: in this thread, or for all replicas between two of their parts."""
    step = current()
    return step.is_proof if step is not None else _proving > 0


def _output(step: Step, output: Any) -> Any:
    """Return a step's output as the value of the global batch. Variables become their values."""
    import tensorflow as tf

    if output is None or isinstance(output, (str, tf.RaggedTensor, tf.SparseTensor)):
        return output
    value = tf.convert_to_tensor(output)
    if value.shape.rank != 0 or not value.dtype.is_floating:
        return value
    if step.kinds.kind_of(value).name != "same":
        try:
            value = step.figure(value)
        except NotOfTheBatch:
            value = step.guarded(value)
    return value / step.replicas if step.adds_up else value


def _inline_functions() -> None:
    """Trace inner `tf.function`s as a part of the step, since collectives do not work within them."""
    import tensorflow as tf

    owner = type(tf.function(lambda: None))
    call = owner.__call__

    @functools.wraps(call)
    def inlined(self: Any, *args: Any, **kwargs: Any) -> Any:
        if current() is None or tf.distribute.in_cross_replica_context():
            return call(self, *args, **kwargs)
        context = tf.__internal__.autograph.control_status_ctx()
        return tf.__internal__.autograph.tf_convert(_plain(self.python_function), context)(*args, **kwargs)

    owner.__call__ = inlined


def _plain(function: Any) -> Any:
    """Bind a decorated method to its real object again, since TensorFlow binds it to a placeholder."""
    bound = getattr(function, "__wrapped__", function)
    target = getattr(getattr(bound, "__self__", None), "target", None)
    return function if target is None else types.MethodType(bound.__func__, target)


def _create_variables_outside(strategy: Any) -> None:
    """Let the strategy create the variables that an optimizer or an unbuilt layer creates within a step."""
    import sys

    variable = sys.modules["keras.src.backend.tensorflow.core"].Variable
    initialize = variable._initialize

    @functools.wraps(initialize)
    def _initialize(self: Any, value: Any) -> None:
        if current() is None or not callable(value):
            initialize(self, value)
            return
        with outside(strategy):
            initialize(self, value)

    variable._initialize = _initialize


@contextlib.contextmanager
def outside(strategy: Any) -> Iterator[None]:
    """Leave the step and its graph, so that variables are created once: by the strategy, or by the process (None)."""
    import tensorflow as tf

    with tf.init_scope(), out_of_scope(), contextlib.nullcontext() if strategy is None else strategy.scope():
        yield


def line_of_script(folder: str, tensor: Any = None) -> str:
    """Return `train.py:12: SOURCE` for the innermost frame in the script's folder; empty if there is none."""
    for frames in (*_made(tensor), traceback.extract_stack()):
        line = innermost_line(frames, folder)
        if line:
            return line
    return ""


def innermost_line(frames: Iterable[Any], folder: str) -> str:
    for frame in reversed(list(frames)):
        if is_of_script(frame.filename, folder):
            line = linecache.getline(frame.filename, frame.lineno or 0).strip()
            line = line if len(line) <= _LINE_MAX else f"{line[:_LINE_MAX]}…"
            return f"{os.path.basename(frame.filename)}:{frame.lineno}: {line}"
    return ""


_LINE_MAX = 120
"""How many characters of a source line are shown, so that the message about it is not cut off."""


_NEAR = 50
"""How many operations before a tensor are searched for a line of the script. Keras may have made the last ones."""


def _made(tensor: Any) -> Iterator[Any]:
    """Yield the traceback of a tensor's operation, and then of the operations of its inputs."""
    waiting = [tensor.op] if tensor is not None else []
    seen: set[str] = set()
    while waiting and len(seen) < _NEAR:
        op = waiting.pop(0)
        if op.name not in seen:
            seen.add(op.name)
            waiting += [each.op for each in op.inputs]
            yield op.traceback or ()
