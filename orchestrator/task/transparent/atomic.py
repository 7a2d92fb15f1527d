"""Makes training steps atomic, so that a survivor of a dead peer holds the state of exactly one step.

A step waits for its peers in collectives. When a peer dies, each operation that waits for no collective has been done
and the others have not: a counter, say, is one ahead of the weights. So, in the graph of a training step:

- All writes after the last all-reduce that a weight waits for (the weights', the optimizer's, most metrics') wait for
  all collectives up to it, and for `begun`, a counter of ours. `done` counts when all of them have been made. Where the
  two differ, something has failed between the writes: then the state is that of no step, and is not handed over.
- What is written before (the state of random generators, moving averages, the mean of the loss) cannot wait, since the
  collectives may follow from it. Of these variables, which are small, the step's end keeps a copy beside `done`.
- Where data of unknown length ends, one process fails in a step that has counted already: the optimizer's `iterations`
  are one ahead after each such epoch. What a step adds without waiting for anything is added then here too.

Each edge that is added leads from an operation to one that was made after it, but for those to and from the counters,
which share nothing with others. So no circle can come of it, and nothing is computed in another way.
"""

from __future__ import annotations

import functools
import weakref
import zlib

from orchestrator.task.transparent import step as steps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

COPIES_MAX_BYTES = 1 << 16
COPIES_MAX_SHARE = 0.1
"""What may be copied in each step: so much, or this share of the weights' bytes. A step that updates weights before its
last all-reduce, as with two optimizers, would need a copy of those."""

_READS = frozenset(
    {
        *("ReadVariableOp", "VariableShape", "VarIsInitializedOp"),
        *("ResourceGather", "ResourceGatherNd", "StatelessIf", "StatelessWhile", "StatelessCase"),
        "PartitionedCall",
    }
)


class NotAtomic(Exception):
    """A step cannot be made atomic; the message says why."""


class Atomic:
    """The training steps of one model."""

    def __init__(self, model: Any, counter: Any = None, shares: Any = None) -> None:
        self._model = weakref.ref(model)
        self._counter = counter
        """The variable that counts the steps of a loop of the script's own; it must be counted within them."""
        self.shares = shares
        """What is told of metrics when a step begins (see `shares.py`), or None."""
        self.refusal: str | None = "no step has been traced"
        """Why the steps are not atomic; None: they are."""
        self._ends: list[Any] = []
        """The operation that ends the step which is being traced."""
        self._begun: Any = None
        self._done: Any = None
        self._copies: dict[int, tuple[Any, Any]] = {}
        """By the identity of a variable's handle: the handle, which is kept alive, and the copy."""
        self._written: dict[int, Any] = {}
        """By the same: the handles of all variables that a step writes."""
        self._added: list[tuple[Any, Any]] = []
        """Handles, and the constants that a step adds to them."""
        self.is_over = False
        """Whether these were added since the data of an epoch ended, which a restart within the epoch does again."""

    def begin(self) -> int:
        """Return where the step's operations begin. Call it in the graph, before the step is traced."""
        return len(_graph().get_operations())

    def finish(self, outputs: Any, begin: int) -> Any:
        """Make the step atomic that was traced since `begin`. Return its outputs, which wait for its writes."""
        import tensorflow as tf

        if self.refusal is not None and self._done is not None:
            return outputs  # another trace of the same step was refused

        def finish(strategy: Any, begins: Any) -> None:
            # All replicas of a process share the graph.
            first = min(strategy.experimental_local_results(begins))
            try:
                self._ends.append(self._finish(_graph().get_operations()[first:]))
            except NotAtomic as e:
                self.refusal = str(e)
            except Exception as e:  # another version of TensorFlow: the training is as it was
                self.refusal = f"the step's graph is not understood ({type(e).__name__}: {str(e)[:200]})"

        self._ends = []  # each replica does this before the first one goes on
        tf.distribute.get_replica_context().merge_call(finish, args=(begin,))
        if not self._ends:
            return outputs
        with tf.control_dependencies(self._ends):
            return tf.nest.map_structure(
                lambda each: tf.identity(each) if tf.is_tensor(each) else each, outputs
            )

    def _finish(self, operations: list[Any]) -> Any:
        """Make atomic what all replicas of this process have made of the step. Return the operation that ends it."""
        import tensorflow as tf

        graph = _graph()
        ours = getattr(getattr(self.shares, "told", None), "handle", None)
        outer = {inner.name: handle for handle, inner in getattr(graph, "captures", ())}
        weights = [
            each for weight in getattr(self._model(), "trainable_variables", ()) for each in owned(weight)
        ]
        of_weights = {id(variable.handle) for variable in weights}
        collectives, writes = [], []
        for place, op in enumerate(operations):
            if _is_collective(op):
                collectives.append((place, op))
            elif handles := _written(op):
                writes.append((place, op, [(handle, outer.get(handle.name)) for handle in handles]))
        if self._counter is not None and id(own(self._counter).handle) not in {
            id(h) for *_, to in writes for _, h in to
        }:
            raise NotAtomic(
                "the step does not count itself: what is given as `step` is not changed within it"
            )
        self._written.update((id(outside), outside) for *_, to in writes for _, outside in to)
        last = max((at for at, _, to in writes if any(id(h) in of_weights for _, h in to)), default=None)
        waited = [(at, op) for at, op in collectives if last is not None and at < last]
        if not waited:
            raise NotAtomic("no weight is updated after an all-reduce of its step")
        gate = waited[-1][0]
        written = [(h, outside) for at, _, to in writes if at < gate for h, outside in to]
        early = {h.name: (h, outside) for h, outside in written if ours is None or outside is not ours}
        self._check(early, sum(_bytes_of(variable.handle) for variable in weights))
        if self._done is None:
            self._begun, self._done = (plain(_zero, weights[0].device) for _ in range(2))
        known = set(self._copies)
        for _, outside in early.values():
            if id(outside) not in self._copies:
                self._copies[id(outside)] = (outside, _plain_copy(outside))
        if known and known != {id(outside) for _, outside in early.values()}:
            raise NotAtomic("the model's steps differ in what they write before their all-reduce")
        late = [op for at, op, _ in writes if at > gate]
        self._added = _constants_added([(op, to) for at, op, to in writes if at > gate])
        with tf.control_dependencies([op for _, op in waited]):
            begun = self._begun.assign_add(1, read_value=False)
        for op in late:
            op._add_control_inputs([begun])
        with tf.control_dependencies([begun]):
            copied = [
                self._copies[id(outside)][1].assign(_read(handle), read_value=False)
                for handle, outside in early.values()
            ]
        with tf.control_dependencies([*late, *copied]):
            done = self._done.assign_add(1, read_value=False)
        self.refusal = None
        return done

    def ending(self, function: Any) -> Any:
        """Return a function of steps that leaves what one process leaves where its data ends."""
        import tensorflow as tf

        @functools.wraps(function)
        def stepping(iterator: Any) -> Any:
            try:
                return function(iterator)
            except (StopIteration, tf.errors.OutOfRangeError):
                if self.refusal is None and not self.is_over:
                    self.is_over = True
                    for outside, value in self._added:
                        _raw().assign_add_variable_op(outside, value)
                raise

        stepping.of_steps = True  # type: ignore[attr-defined]
        if trace := getattr(function, "get_concrete_function", None):
            stepping.get_concrete_function = trace  # type: ignore[attr-defined]  # restarts trace before they restore
        return stepping

    def _check(self, early: dict[str, tuple[Any, Any]], weights_bytes: int) -> None:
        if any(outside is None or not hasattr(outside, "numpy") for _, outside in early.values()):
            raise NotAtomic("a variable that is written before the all-reduce is not one of the process")
        count = sum(_bytes_of(handle) for handle, _ in early.values())
        if count > max(COPIES_MAX_BYTES, COPIES_MAX_SHARE * weights_bytes):
            raise NotAtomic(
                f"{count:,} bytes are written before the last all-reduce of a step, as with several optimizers, and "
                "would have to be copied in each step"
            )

    def counted(self) -> int:
        """Return how many steps were done."""
        return 0 if self._done is None else int(self._done.numpy())

    def steps(self) -> int:
        """Return how many steps were done in this process. Raises NotAtomic where the last one was not done whole."""
        if self.refusal is not None:
            raise NotAtomic(self.refusal)
        begun, done = int(self._begun.numpy()), int(self._done.numpy())
        if begun != done:
            raise NotAtomic("the last step failed between its updates")
        return done

    def put_back(self) -> None:
        """Restore the variables that a step writes early to their values after the last whole step."""
        for outside, copy in self._copies.values():
            _raw().assign_variable_op(outside, copy.numpy())

    def keep_changes(self) -> None:
        """Count what was changed since the last step as a part of it, such as an average that an epoch's end takes."""
        for outside, copy in self._copies.values():
            copy.assign(_read(outside), read_value=False)

    def check_put_back(self) -> None:
        """Raise NotAtomic where the next step has begun since `put_back`."""
        for outside, copy in self._copies.values():
            if _read(outside).numpy().tobytes() != copy.numpy().tobytes():
                raise NotAtomic("the next step began while the state was written")

    def checksum(self) -> int:
        """Return the CRC-32 of the weights: all replicas have the same after the same step."""
        import numpy as np

        crc = 0
        for weight in getattr(self._model(), "trainable_variables", ()):
            crc = zlib.crc32(np.ascontiguousarray(self.value(weight)).view(np.uint8).data, crc)
        return crc

    def check_finite(self) -> None:
        """Raise NotAtomic where a weight is NaN or infinite: the checkpoint before may have been finite."""
        for weight in getattr(self._model(), "trainable_variables", ()):
            if not _is_finite(self.value(weight)):
                raise NotAtomic(f"a weight is NaN or infinite ({name_of(weight)})")

    def check_written(self, variable: Any, value: Any) -> None:
        """Raise NotAtomic where this value of a variable that a step writes, such as an optimizer's, is not finite.

        What no step writes may be infinite by design, as a mask is, and so may a single number, such as the best loss.
        """
        if id(own(variable).handle) not in self._written or _is_finite(value):
            return
        if getattr(value, "ndim", 0) or value != value:  # NaN is not itself
            raise NotAtomic(f"what a step updates is NaN or infinite ({name_of(variable)})")

    def value(self, variable: Any) -> Any:
        """Return the value that a variable had after the last whole step, on this process's replica."""
        return self.values(variable)[0]

    def values(self, variable: Any) -> list[Any]:
        """Return the same on each replica of this process."""
        return [self._whole(each) for each in owned(variable)]

    def _whole(self, variable: Any) -> Any:
        value = self._copies.get(id(variable.handle), (None, variable))[1].numpy()
        for outside, added in self._added if self.is_over else ():
            value = value - added if outside is variable.handle else value
        return value


def _is_finite(value: Any) -> bool:
    import numpy as np

    array = np.asarray(value)
    if array.dtype.kind in "OSU":
        return True  # no numbers
    if array.dtype.kind not in "biufc":
        array = array.astype(np.float32)  # bfloat16 and similar types
    return bool(np.isfinite(array).all())


def name_of(variable: Any) -> str:
    """Return the name of a variable, for people."""
    return str(getattr(variable, "path", None) or getattr(variable, "name", "without a name"))


def of_tensorflow(variable: Any) -> Any:
    """Return the TensorFlow variable within one of Keras 3."""
    return variable if hasattr(type(variable), "values") else getattr(variable, "_value", variable)


def own(variable: Any) -> Any:
    """Return this process's component of a variable, that of its first replica: reading it needs no peer."""
    return owned(variable)[0]


def owned(variable: Any) -> Any:
    """Return a variable's component for each replica of this process."""
    tf_variable = of_tensorflow(variable)
    values = getattr(tf_variable, "values", None)
    return values if isinstance(values, (tuple, list)) else (tf_variable,)


def _graph() -> Any:
    from tensorflow.python.framework import ops

    return ops.get_default_graph()


def _is_collective(op: Any) -> bool:
    if op.type.startswith(("Collective", "Nccl")):
        return True
    if op.op_def.is_stateful and any(attr.type in ("func", "list(func)") for attr in op.op_def.attr):
        for name in _functions(op):
            if _has_collective(op.graph, name):
                raise NotAtomic("a step has an all-reduce within a condition or a loop")
    return False


def _functions(op: Any) -> list[str]:
    names = []
    for attr in op.op_def.attr:
        if attr.type == "func":
            names.append(op.get_attr(attr.name).name)
        elif attr.type == "list(func)":
            names += [each.name for each in op.get_attr(attr.name)]
    return [name for name in names if name]


def _has_collective(graph: Any, name: str) -> bool:
    if not graph._is_function(name):
        return False
    definition = graph._get_function(name).cached_definition
    for node in definition.node_def:
        if node.op.startswith(("Collective", "Nccl")):
            return True
        inner = [attr.func.name for attr in node.attr.values() if attr.HasField("func")]
        if any(_has_collective(graph, each) for each in inner):
            return True
    return False


def _written(op: Any) -> list[Any]:
    """Return the handles of the variables that an operation may write."""
    if not op.op_def.is_stateful or op.type in _READS:
        return []
    return [each for each in op.inputs if each.dtype.name == "resource" and _shape_and_type(each) is not None]


def _shape_and_type(handle: Any) -> Any:
    from tensorflow.python.ops import handle_data_util

    data = getattr(handle, "_handle_data", None)
    if data is None and not hasattr(handle, "numpy"):
        data = handle_data_util.get_resource_handle_data(handle)
    infos = data.shape_and_type if data is not None and data.is_set else ()
    return next(iter(infos), None) if len(infos) == 1 else None


def _bytes_of(handle: Any) -> int:
    import tensorflow as tf

    info = _shape_and_type(handle)
    if info is None:
        return 0
    count = tf.TensorShape(info.shape).num_elements()
    return int(count or 0) * int(tf.as_dtype(info.dtype).size)


def _raw() -> Any:
    from tensorflow.python.ops import gen_resource_variable_ops

    return gen_resource_variable_ops


def _read(handle: Any) -> Any:
    return _raw().read_variable_op(handle, _shape_and_type(handle).dtype)


def _constants_added(writes: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Return the outer handles of variables to which a constant is added that waits for nothing, and the constants."""
    from tensorflow.python.framework import tensor_util

    added: list[tuple[Any, Any]] = []
    sums: dict[Any, list[Any]] = {}
    for op, to in writes:
        if op.type == "AssignAddVariableOp" and not op.control_inputs:
            added += [(outside, tensor_util.constant_value(op.inputs[1])) for _, outside in to]
        # Keras 3 counts so, for all replicas at once
        elif op.type == "AssignVariableOp" and not op.control_inputs:
            sums.setdefault(_source(op.inputs[1]), []).extend(to)
    for total, to in sums.items():
        terms = [_source(each) for each in total.inputs] if total.type == "AddV2" else []
        others = [
            each
            for each in terms
            if each.type != "ReadVariableOp" or not any(each.inputs[0] is handle for handle, _ in to)
        ]
        if len(terms) == 2 and len(others) == 1:
            value = tensor_util.constant_value(others[0].outputs[0])
            added += [(outside, value) for _, outside in to]
    return [(outside, value) for outside, value in added if value is not None]


def _source(tensor: Any) -> Any:
    """Return the operation that makes a tensor, before it is handed on."""
    return _source(tensor.op.inputs[0]) if tensor.op.type == "Identity" else tensor.op


def _plain_copy(outside: Any) -> Any:
    import tensorflow as tf

    with tf.init_scope():
        value = _read(outside)
        if value.shape != tf.TensorShape(_shape_and_type(outside).shape):
            raise NotAtomic("a variable that is written before the all-reduce is made within the step")
        return plain(value, outside.device)


def _zero() -> Any:
    import tensorflow as tf

    return tf.zeros([], tf.int64)


def plain(value: Any, device: str) -> Any:
    """Make a variable of this process alone, which no strategy knows."""
    import tensorflow as tf

    with steps.outside(None), tf.device(device):
        return tf.Variable(value, trainable=False)
