"""Proves in the first step of a fit that the replicas train what one process would, by a measurement.

Each gradient of the batch is computed twice: as the replicas share it, and as one process computes it from all examples
at once, which the first replica does. Where that is long or needs much memory, fewer examples are taken. It changes no
variable, draws no noise, and computes in 32 bits. The step follows, and the comparison comes with its figures. If the
gradients differ, the run ends before its next step.
"""

from __future__ import annotations

import functools
import math
import os
import sys
import time

from orchestrator.task.transparent import step as steps
from orchestrator.task.transparent.replay import Course
from orchestrator.task.transparent.rules import Kinds
from orchestrator.task.transparent.strategy import mean_over_workers, told_by_chief, workers_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from orchestrator.task.transparent.reporter import Reporter

TOLERANCE = 1e-3
_LEAST = 1e-3
"""A weight's gradient is taken to be as long as this share of that of all weights, if it is shorter."""
_CANCELLED = 1e-2
"""Likewise of what the replicas add up to it: near an optimum that cancels out, and what is left is rounding."""
AT_MOST = 0.1
"""The share of a run's time that proofs may take, but for the first one."""
_EPSILONS = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
"""By how much the numbers of a script that computes in 16 bits by itself are rounded."""
TOLERANCE_OF_GPUS = 5e-2
"""They round the numbers that they multiply."""
_FEW = 12
"""The least examples of a replica that are taken. More are a multiple of it: a step may divide them into parts."""
_FEW_REPLICAS = 4
"""How many replicas' parts of the batch one process computes with at once, where there is memory for them."""
_UNKNOWN = 64
"""How large a dimension is taken to be that is not known when memory is reckoned."""


class _Alone:
    """The context of a replica that computes for itself: what it would add up or gather is there already."""

    def __init__(self, context: Any) -> None:
        self._context = context

    def all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        del reduce_op, options
        return value

    def all_gather(self, value: Any, axis: Any, options: Any = None) -> Any:
        del axis, options
        return value

    def merge_call(self, *_: Any, **__: Any) -> Any:
        raise NotTwice("the replicas do something together that is neither a sum nor a gathering")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


class Proofs:
    """Which fits of a run are proved: all of them, or those of which it takes little of the run's time.

    The first one is, and each later one of another model, as it is compiled, once all proofs together take at most
    AT_MOST of the time: in its first step, or in a later one. After a restart it is not done again.
    """

    def __init__(
        self, strategy: Any, chief: bool, is_always: bool, known: set[tuple[float, ...]], failed: str = ""
    ) -> None:
        """Take whether each fit is proved in its first step, and what was proved before a restart.

        The file `failed` is there once a proof has found no memory: then none is tried, after a restart neither.
        """
        self.chief = chief
        self._strategy, self._chief, self._is_always = strategy, chief, is_always
        self._known = known
        self._failed = failed
        self._began_at, self._spent_s, self._last_s = time.monotonic(), 0.0, 0.0

    def is_due(self, course: Course) -> bool:
        """Return whether the next step is proved. All workers must ask, before each step of each fit."""
        course.calls += 1
        if course.is_proved or course.calls & (course.calls - 1):
            return False
        if self._is_always:
            return course.calls == 1
        affords = self._spent_s + self._last_s <= AT_MOST * (time.monotonic() - self._began_at)
        mine = -1.0 if course.signature in self._known else float(affords or not self._spent_s)
        told = told_by_chief(self._strategy, self._chief, mine)  # their clocks differ
        course.is_proved = told < -0.5
        return told > 0.5

    def all_have(self, room: bool) -> bool:
        """Return whether all workers have room. All must call this."""
        room = room and not os.path.exists(self._failed)
        return mean_over_workers(self._strategy, float(room)) > 1 - 1e-6

    def make_without(self, step: Callable[[], Any]) -> Any:
        """Make the step without its proof, for which there was no memory, and remember that.

        Other workers wait in vain for a part of the proof, so they begin again. So does a process of which a replica
        waited for another: TensorFlow cancels what they send each other, and then refuses all that they send later.
        """
        import tensorflow as tf

        if self._failed:
            open(self._failed, "w").close()
        again = MemoryError(f"{NO_MEMORY}. The training begins again, and does without it")
        if workers_of(self._strategy) > 1:
            raise again
        try:
            return step()
        except tf.errors.CancelledError:
            raise again from None  # what it says is what followers of a lost peer say

    def done(self, course: Course, began_at: float) -> None:
        """Remember that a fit is proved, as far as it can be, and how long that took."""
        self._last_s = time.monotonic() - began_at
        self._spent_s += self._last_s
        self._known.add(course.signature)
        course.is_proved = True


class Proof:
    """The comparison of a step of fits of a model."""

    FIGURE = "orch_proof"
    """The name of the comparison among a step's figures."""

    def __init__(self, report: Reporter, folder: str, chief: bool = True) -> None:
        """Take whether this worker says what is found: all of them find the same."""
        self._report = report
        self._chief = chief
        self._folder = folder
        self.names: list[str] = []
        """Of the weights whose gradients are compared."""
        self.weights: Callable[[], list[Any]] = list
        """Returns the weights that are trained."""
        self._left_out: set[str] = set()
        self._tolerance, self._least = TOLERANCE, _LEAST

    def compared(
        self, make: Callable[..., steps.Step], kinds: Kinds, function: Callable[[Any], Any], data: Any
    ) -> Any:
        """Return, in a replica, by how much each gradient differs, and then the number of examples."""
        import tensorflow as tf

        if any(isinstance(leaf, (tf.RaggedTensor, tf.SparseTensor)) for leaf in tf.nest.flatten(data)):
            self._left_out.add("a batch with ragged or sparse tensors")
            return None
        replicas, graph = tf.distribute.get_strategy().num_replicas_in_sync, tf.compat.v1.get_default_graph()
        on_gpus, before = bool(tf.config.list_logical_devices("GPU")), len(graph.get_operations())
        with steps.outside(None):
            most = tf.Variable(2**30, trainable=False)
        parts = 2 * replicas if on_gpus else replicas if replicas > _FEW_REPLICAS else 1
        data = tf.nest.map_structure(functools.partial(_first_rows, parts, most), data)
        shared = make(kinds, data=data, is_proof=True)
        try:
            together = self._gradients(shared, function)
            new = graph.get_operations()[before:]
            whole = tf.nest.map_structure(
                lambda leaf: (
                    shared.gathered(leaf) if isinstance(leaf, tf.Tensor) and leaf.shape.rank else leaf
                ),
                shared.data,
            )
        except Exception as e:  # a step that may not be computed twice must train all the same
            self._cannot(e)
            return None
        self._left_out = shared.left_out
        by_itself: list[tuple[str, Any]] = []
        place = tf.get_static_value(tf.convert_to_tensor(shared.context.replica_id_in_sync_group))
        if int(place) == 0:  # the others wait for what it finds
            try:
                with tf.control_dependencies([gradient for _, gradient in together]):
                    alone = make(Kinds(), data=whole, is_proof=True, context=_Alone(shared.context))
                    by_itself = self._gradients(alone, function)
                self._left_out |= alone.left_out
            except Exception as e:
                self._cannot(e)
        affordable = free_bytes(on_gpus=on_gpus) // 2 // (replicas * bytes_per_example(new))
        if affordable < _FEW:
            self._left_out.add(TOO_LARGE)
        with tf.init_scope():
            most.assign(max(1, min(2**30, affordable)))
        self.names = [name for name, _ in together]
        if not together:
            self._left_out.add("steps that use no gradient")
            return None
        names = {tensor.dtype.name for op in new for tensor in op.outputs}
        epsilon = max((_EPSILONS[name] for name in names & {*_EPSILONS}), default=0.0)
        if epsilon:
            self._tolerance, self._least = max(TOLERANCE, 8 * epsilon), 1.0
        elif on_gpus:
            self._tolerance = TOLERANCE_OF_GPUS
        sums = tf.distribute.ReduceOp.SUM
        added = shared.context.all_reduce(sums, tf.stack(shared.lengths))
        mine = tf.zeros([len(together) + 1])
        if self.names == [name for name, _ in by_itself]:
            norms = tf.stack([_norm(gradient, tf) for _, gradient in by_itself])
            least = tf.maximum(self._least * tf.norm(norms), _CANCELLED * added) + 1e-12
            pairs = zip(together, by_itself, strict=True)
            differing = tf.stack([_norm(a - tf.cast(b, a.dtype), tf) for (_, a), (_, b) in pairs])
            mine = tf.concat([differing / tf.maximum(norms, least), [shared.total]], 0)
        return shared.context.all_reduce(sums, mine)

    def _cannot(self, error: Exception) -> None:
        """Remember why a step cannot be computed twice; raise what was refused, and what ends the other replicas."""
        from tensorflow.python.distribute.mirrored_run import _RequestedStop

        if self._report.refused is not None or isinstance(error, _RequestedStop):
            raise error
        self._left_out.add(f"{type(error).__name__}: {error!s:.200}")

    def leave_out(self, what: str) -> None:
        """Say that a step is not proved, and why."""
        self._left_out.add(what)
        self.judge(None)

    def has_room(self) -> bool:
        """Return whether this process has the memory for a proof."""
        import tensorflow as tf

        weights = sum(math.prod(weight.shape) * 4 for weight in self.weights())
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        return has_room(weights, replicas, on_gpus=bool(tf.config.list_logical_devices("GPU")))

    def _gradients(self, step: steps.Step, function: Callable[[Any], Any]) -> list[tuple[str, Any]]:
        import tensorflow as tf

        with steps.entered(step):
            function(step.data)
            step.at_end.clear()
        found = step.recorded
        return [(name, tf.cast(each, tf.float32) if each.dtype.size < 4 else each) for name, each in found]

    def _say(self, found: str) -> None:
        if self._chief:
            self._report("proof", found)

    def judge(self, figures: Any, step: int = 1) -> None:
        """Say what was found in this step of the fit, or end the run."""
        left_out = f"; not compared: {', '.join(sorted(self._left_out))}" if self._left_out else ""
        if figures is None or self._left_out & {steps.NOISE, TOO_LARGE, NO_MEMORY}:
            self._say(f"the gradient of a step is not proved to be that of one process{left_out}")
            return
        *differing, examples = (float(each) for each in figures)
        if not examples:
            self._say(f"the gradient of a step is not proved: one process cannot compute it{left_out}")
            return
        if not any(map(math.isfinite, differing)):
            self._say("the gradient of a step is not finite, and is not proved")
            return
        worst = max(range(len(differing)), key=lambda place: _size(differing[place]))
        if _size(differing[worst]) <= self._tolerance:
            self._say(
                f"proved equal at step {step}: the gradients of {len(differing)} weights, of {examples:.0f} examples, "
                f"are those of one process (they differ by at most {differing[worst]:.1e} of their length{left_out})",
            )
            return
        raise self._report.unsupported(
            f"{steps.line_of_script(self._folder) or 'fit'}: the replicas do not train what one process would: in "
            f"step {step} the gradient of {self.names[worst]} differs by {100 * differing[worst]:.3g} % of its length "
            f"from that of the whole batch{left_out}. So it ends before its next step. Something in the step depends "
            "on the batch as a whole, and is not seen to: `orch prove` compares more steps, and `prove: off` under "
            "`run` trains without this proof"
        )


TOO_LARGE = "a step that is too large for the memory that is free"
NO_MEMORY = "there was no memory for the proof of a step"


def _first_rows(parts: int, most: Any, leaf: Any) -> Any:
    """Return at most so many examples of a replica, and about one of so many parts of them."""
    import tensorflow as tf

    if not isinstance(leaf, tf.Tensor) or leaf.shape.rank == 0:
        return leaf
    rows, whole = tf.shape(leaf)[0], tf.constant(_FEW)
    wanted = rows if parts == 1 else tf.maximum(whole, -(-rows // parts // whole) * whole)
    afforded = tf.where(most < whole, most, most - most % whole)
    return tf.ensure_shape(leaf[: tf.where(wanted <= most, wanted, afforded)], [None, *leaf.shape[1:]])


def bytes_per_example(operations: list[Any]) -> int:
    """Return at most how many bytes the results of all operations have for each example, as if none were freed."""
    count = 1
    for tensor in (tensor for op in operations for tensor in op.outputs):
        sizes = list(tensor.shape) if tensor.shape.rank else []
        if None in sizes:
            sizes[sizes.index(None)] = 1
            count += tensor.dtype.size * math.prod(_UNKNOWN if size is None else size for size in sizes)
    return count


def has_room(weights: int, replicas: int, *, on_gpus: bool) -> bool:
    """Return whether there is memory for two more gradients of so many bytes: else the proof could end the run.

    On a GPU there must be room for the optimizer and the step beside them, which take theirs later.
    """
    return (16 if on_gpus else 4 * replicas) * weights <= free_bytes(on_gpus=on_gpus)


def free_bytes(*, on_gpus: bool) -> int:
    """Return how much memory a proof may count on: of the fullest GPU, or of the host; 0 where that is not known."""
    try:
        if on_gpus:
            return min(_free_bytes_of_gpus())
        with open("/proc/meminfo") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))
    except Exception:  # TensorFlow has several for a device that tells nothing
        return 0


def _free_bytes_of_gpus() -> list[int]:
    """Return of each GPU what TensorFlow may allocate there, and has not."""
    import tensorflow as tf
    from tensorflow.python.client import device_lib

    limits = [int(each.memory_limit) for each in device_lib.list_local_devices() if each.device_type == "GPU"]
    used = tf.config.experimental.get_memory_info
    return [limit - int(used(f"GPU:{place}")["current"]) for place, limit in enumerate(limits)]


def _size(number: float) -> float:
    """Return the number; infinity for what is none."""
    return number if number == number else float("inf")


def _norm(tensor: Any, tf: Any) -> Any:
    return tf.cast(tf.norm(tensor), tf.float32)


def of_first_steps(
    make: Callable[[Proof | None], Callable[[Any], Any]],
    weights: Callable[[], list[Any]],
    proof: Callable[[], Proof],
    proofs: Proofs,
) -> Callable[[Any], Any]:
    """Return a function for the steps of fits of which one of each fit is proved, where that is due.

    Args:
        make: returns the function of a step or several, with a proof or without.
        weights: returns those that are trained.
        proof: returns that of a model.
        proofs: says which steps are proved.
    """
    import tensorflow as tf

    compared = proof()
    compared.weights = weights
    proving, ordinary = make(compared), make(None)

    @functools.wraps(ordinary)
    def function(iterator: Any) -> Any:
        course = Course.current
        if course is None or not proofs.is_due(course):
            return ordinary(iterator)
        began_at = time.monotonic()
        if not proofs.all_have(compared.has_room()):
            compared.leave_out(TOO_LARGE)
            proofs.done(course, began_at)
            return ordinary(iterator)
        ordinary.trace(iterator)  # type: ignore[attr-defined]
        batch = next(iterator)
        try:
            logs = proving(iter([batch]))
        except tf.errors.ResourceExhaustedError:
            compared.leave_out(NO_MEMORY)
            proofs.done(course, began_at)
            return proofs.make_without(lambda: ordinary(iter([batch])))
        compared.judge(logs.pop(Proof.FIGURE, None) if isinstance(logs, dict) else None, course.calls)
        proofs.done(course, began_at)
        return logs

    return function


def install() -> None:
    """Have what is computed for a proof change nothing, draw no mask of a dropout, and compute in 32 bits."""
    import tensorflow as tf
    from tensorflow.python.distribute import values
    from tensorflow.python.framework import func_graph

    for owner in (values.DistributedVariable, values.MirroredVariable, values.SyncOnReadVariable):
        for name in vars(owner):  # they ask the other replicas first
            if name.startswith(("assign", "scatter_")):
                setattr(owner, name, _unless_proving(vars(owner)[name], lambda variable: variable))
    context: Any = tf.distribute.ReplicaContext
    for name in ("all_reduce", "all_gather", "merge_call"):
        setattr(context, name, _unless_alone(getattr(context, name), name))
    graphs: Any = func_graph.FuncGraph
    graphs._create_op_internal = _without_updates(graphs._create_op_internal)
    random: Any = sys.modules["keras.src.backend.tensorflow.random"]
    random.dropout = _unless_proving(random.dropout, lambda inputs: inputs, "Dropout")
    policy: Any = sys.modules["keras.src.dtype_policies.dtype_policy"].DTypePolicy
    policy.compute_dtype = property(
        _unless_proving(policy.compute_dtype.fget, lambda policy: policy.variable_dtype)
    )


def _unless_alone(function: Any, name: str) -> Any:
    """Have a replica that computes for itself ask none of the others: in BatchNormalization, say."""

    @functools.wraps(function)
    def unless_alone(context: Any, *args: Any, **kwargs: Any) -> Any:
        step = steps.current()
        if step is None or not isinstance(step.context, _Alone):
            return function(context, *args, **kwargs)
        return getattr(step.context, name)(*args, **kwargs)

    return unless_alone


def _without_updates(create: Any) -> Any:
    """Make no operation that changes a variable, a table or a file while a proof is traced, in a branch or loop too."""

    updates, draws, python, calls = kinds_of_operations()

    @functools.wraps(create)
    def create_unless_proving(graph: Any, kind: str, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        import tensorflow as tf

        step = steps.current()
        if not steps.is_proof():
            return create(graph, kind, inputs, *args, **kwargs)
        if updates(kind):
            return create(graph, "NoOp", [], [])
        if step is None:
            return create(graph, kind, inputs, *args, **kwargs)
        if draws(kind):
            step.left_out.add(steps.NOISE)
        if python(kind) or (calls(kind) and _updates_within(graph, kwargs.get("attrs") or {}, updates)):
            raise NotTwice(f"{kind} may do anything")
        if kind == "RngReadAndSkip":  # what it returns is noise, and what it skips would be an update
            inputs = [*inputs[:2], tf.zeros_like(inputs[2])]
        return create(graph, kind, inputs, *args, **kwargs)

    return create_unless_proving


class NotTwice(Exception):
    """What a step computes may not be computed twice: it calls Python, or a function that was made before."""


def _updates_within(graph: Any, attributes: Any, updates: Callable[[str], Any]) -> bool:
    """Return whether a function that was made before, such as one of a SavedModel, updates something."""
    waiting = [name for value in attributes.values() if (name := value.func.name)]
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        called = graph._get_function(name)
        if called is None:
            return True
        for op in called.graph.get_operations():
            if updates(op.type):
                return True
            waiting += [each.func.name for each in op.node_def.attr.values() if each.func.name]
    return False


def kinds_of_operations() -> tuple[Callable[[str], Any], ...]:
    """Return what tells of a kind of operation whether it updates, draws, calls Python, or calls a function."""
    import re

    updates = "Assign|LookupTable(Import|Insert|Remove)|PrintV2|QueueEnqueue|RngSkip|Write"
    of_variables = "Resource(Apply|Scatter|SparseApply|StridedSliceAssign)"
    draws = "(Stateless|Stateful)?(Multinomial|Parameterized|Random|Sample|Shuffle|Standard|Truncated|Uniform)|RngRead"
    patterns = (f"{updates}|{of_variables}", draws, "(Eager)?PyFunc", "(Stateful)?PartitionedCall")
    return tuple(re.compile(each).match for each in patterns)


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
