"""Larger shares without more memory: a step takes a share in parts, adds up their gradients, and applies them once.

With `hold_batch`, the replicas that are left have larger shares of the same batch than those of all workers had. So
that a share does not need more memory than planned, a step goes through it in parts, one after the other, and keeps
only the gradients of each. A term of the loss counts in each part with that part's share of the whole batch: so the
parts add up to the gradient of the batch, whatever their sizes are.

Only models that come out equal are trained so: with Keras's own `train_step` and optimizers, and without a layer that
changes its state in a step, since it would see parts where it has to see the batch. A model that does not fit is found
while its step is traced (`refuse`): then the step is traced anew, takes the share as a whole, and reports that.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading

from orchestrator.task.transparent.divisible import is_of_keras, is_overwritten, whole, why_not
from orchestrator.task.transparent.kinds import SAME
from orchestrator.task.transparent.said import Unsupported

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, NoReturn

    from orchestrator.task.transparent.kinds import Kind
    from orchestrator.task.transparent.said import Said

_thread = threading.local()


class NotInParts(Exception):
    """A step does something that would come out differently if it took its share in parts."""


class Parts:
    """How many parts a share has, if the steps of a model can be taken in parts."""

    def __init__(self, said: Said) -> None:
        self.count = 1
        self.said = said

    def begin(self, count: int, library: str) -> None:
        """Set how many parts a share has. It is called once, before the script runs."""
        if count == 1:
            return
        if library == "keras":
            self.count = count
            _install()
        else:
            self.said("parts", whole("this script uses tf_keras"))

    def of(self, model: Any, step_function: Any, trainer: Any) -> Division | None:
        """Return how the steps of a model with this function are divided; None where they are not."""
        if self.count == 1 or step_function != model.train_step:
            return None
        why = why_not(model, step_function, trainer)
        if why:
            self.said("parts", whole(why))
            return None
        return Division(self.count, model, self.said)

    def eager(self, model: Any, step_function: Any) -> None:
        """Report that the steps of a model with run_eagerly=True are not divided."""
        if self.count > 1 and step_function == model.train_step:
            self.said("parts", whole(f"{model.name} is compiled with run_eagerly=True"))


class Division:
    """How the steps of one model are divided."""

    def __init__(self, count: int, model: Any, said: Said) -> None:
        self.count = count
        self.model = model
        self.said = said
        self.refusal = ""

    def refused(self) -> bool:
        """Give up where a step could not be traced in parts. Return whether it can be traced anew."""
        if not self.refusal:
            return False
        self.said("parts", whole(self.refusal))
        self.count, self.refusal = 1, ""
        return True

    def has_metric(self, variable: Any) -> bool:
        """Return whether a variable is that of a metric, to which the parts add."""
        return any(each is variable for each in self.model.metrics_variables)

    def check_metrics(self) -> None:
        """Refuse metrics of the script's own: they may do something other than adding."""
        waiting = list(self.model.metrics)
        for metric in waiting:
            waiting += getattr(metric, "metrics", None) or metric._metrics
            if not is_of_keras(metric, "update_state"):
                refuse(f"the metric {metric.name} is the script's own")


def _taken(model: Any, count: int) -> str:
    return (
        f"a replica takes its share of a batch of {model.name} in {count} parts, one after the other, and applies the "
        "sum of their gradients: no part has more examples than a share has with all replicas"
    )


class Taking:
    """The gradients of a replica's parts so far."""

    def __init__(self, division: Division, total: Any) -> None:
        self.division = division
        self.total = total
        """The examples of the whole batch, in all parts of all replicas."""
        self.part = 0
        self.step: Any = None
        """The step (see `step.py`) of this part."""
        self.sums: list[Any] = []
        self.is_applying = False

    def add(self, gradients: list[Any]) -> None:
        if not self.sums:
            self.sums = gradients
            return
        self.sums = [
            new if old is None else old if new is None else _sum(old, new)
            for old, new in zip(self.sums, gradients, strict=True)
        ]

    def reduced(self) -> list[Any]:
        """Return the sums over all parts of all replicas."""
        import tensorflow as tf

        there = [each for each in self.sums if each is not None]
        reduced = iter(self.step.context.all_reduce(tf.distribute.ReduceOp.SUM, there) if there else ())
        found = [None if each is None else next(reduced) for each in self.sums]
        for tensor in tf.nest.flatten(found, expand_composites=True):
            if tensor is not None:
                self.step.kinds.set(tensor, SAME)
        return found


def _sum(a: Any, b: Any) -> Any:
    """Return the sum of two gradients. Rows of an embedding stay rows: some optimizers square each of them."""
    import tensorflow as tf

    if isinstance(a, tf.IndexedSlices) and isinstance(b, tf.IndexedSlices):
        values, indices = tf.concat([a.values, b.values], axis=0), tf.concat([a.indices, b.indices], axis=0)
        return tf.IndexedSlices(values, indices, a.dense_shape)
    return tf.convert_to_tensor(a) + tf.convert_to_tensor(b)


def taking() -> Taking | None:
    """Return the step in parts that this thread traces; None if there is none."""
    found: Taking | None = getattr(_thread, "taking", None)
    return found


def refuse(why: str) -> NoReturn:
    """Stop taking the traced step in parts. Raises NotInParts."""
    found = taking()
    if found is not None:
        found.division.refusal = why
    raise NotInParts(why)


def refuse_a_mean() -> None:
    """Refuse a mean over something other than examples, while parts are taken."""
    if taking() is not None:
        refuse("the loss is a mean over what a mask or weights leave, which parts do not know of each other")


def refuse_a_figure(what: str) -> None:
    """Refuse a figure of a part that does not add up to that of the batch, while parts are taken."""
    if taking() is not None:
        refuse(f"{what} is not put together from parts")


def enter(step: Any) -> None:
    """Note the step of the part that is taken, if one is."""
    found = taking()
    if found is not None:
        found.step = step


def of_a_figure(kind: Kind, total: Any, *, adds_up: bool) -> Any:
    """Return the factor of a part's figure with which all parts together have the batch's figure. 1 outside of parts.

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


def in_parts(step: Callable[[Any], Any], division: Division | None) -> Callable[[Any], Any]:
    """Return a step that goes through its batch in parts. `step` is what `step.install` returns."""
    import tensorflow as tf

    if division is None:
        return step

    def step_in_parts(data: Any) -> Any:
        if tf.executing_eagerly() or division.count == 1:
            return step(data)
        leaves = [leaf for leaf in tf.nest.flatten(data) if leaf is not None]
        rows = next((tf.shape(leaf)[0] for leaf in leaves if _has_rows(leaf)), None)
        if rows is None or not all(map(_is_dense, leaves)):
            division.said("parts", whole("a batch has ragged or sparse tensors"))
            return step(data)
        context = tf.distribute.get_replica_context()
        total = context.all_reduce(tf.distribute.ReduceOp.SUM, tf.cast(rows, tf.float32))
        return _taken_in_parts(step, data, Taking(division, total))

    decorated: Callable[[Any], Any] = tf.autograph.experimental.do_not_convert(step_in_parts)
    return decorated


def _taken_in_parts(step: Callable[[Any], Any], data: Any, found: Taking) -> Any:
    import tensorflow as tf

    logs: Any = None
    count = found.division.count
    for place in range(count):
        found.part = place
        before = [getattr(each, "values", each) for each in found.sums if each is not None]
        with tf.control_dependencies(before):  # one part after the other, or all would be in memory at once
            part = tf.nest.map_structure(functools.partial(_part, place, count), data)
            _thread.taking = found
            try:
                logs = step(part)
                found.division.check_metrics()
                if found.division.refusal:  # the code in between has caught the error of `refuse`
                    raise NotInParts(found.division.refusal)
                if found.step.kinds.crosses:
                    refuse(
                        "a value of an example is computed with one that is made over the examples of the batch"
                    )
            except Unsupported:
                raise
            except Exception as e:
                # The error may be due to the parts. If not, the step fails again when it is traced as a whole.
                found.division.refusal = (
                    found.division.refusal or f"a step failed in parts ({type(e).__name__})"
                )
                raise
            finally:
                _thread.taking = None
    found.division.said("parts", _taken(found.division.model, count))
    return logs


def or_whole(call: Callable[[Any], Any], division: Division | None) -> Callable[[Any], Any]:
    """Return a call that is made again, with whole shares, where its step could not be traced in parts."""
    if division is None:
        return call

    @functools.wraps(call)
    def called(given: Any) -> Any:
        try:
            return call(given)
        except Exception:
            # A step is refused before it runs, so nothing of the batch is taken yet.
            if not division.refused():
                raise
            return call(given)

    return called


def _is_dense(leaf: Any) -> bool:
    import tensorflow as tf

    return isinstance(leaf, tf.Tensor) and leaf.shape.rank is not None


def _has_rows(leaf: Any) -> bool:
    import tensorflow as tf

    return isinstance(leaf, tf.Tensor) and bool(leaf.shape.rank)


def _part(place: int, count: int, leaf: Any) -> Any:
    """Return a part of the rows. A tensor without rows is the same for all parts."""
    import tensorflow as tf

    if not _has_rows(leaf):
        return leaf
    rows = tf.shape(leaf)[0]
    return leaf[rows * place // count : rows * (place + 1) // count]


@contextlib.contextmanager
def changing() -> Iterator[None]:
    """Let these variables be changed in parts: the state of a random generator, from which each part draws."""
    before = getattr(_thread, "may_change", False)
    _thread.may_change = True
    try:
        yield
    finally:
        _thread.may_change = before


def _install() -> None:
    """Patch the optimizers of Keras 3, its generators of noise, and variables."""
    plain: Any = sys.modules["keras.src.backend.tensorflow.optimizer"].TFOptimizer
    scaling: Any = sys.modules["keras.src.optimizers.loss_scale_optimizer"].LossScaleOptimizer
    for owner in (plain, scaling):
        owner.apply = _applying_the_sum(owner.apply)
    generator: Any = sys.modules["keras.src.random.seed_generator"].SeedGenerator
    generator.next = _changing(generator.next)
    variable: Any = sys.modules["keras.src.backend.tensorflow.core"].Variable
    variable.assign = _only_of_metrics(variable.assign)
    _watch_variables_of_tensorflow()


def _applying_the_sum(apply: Any) -> Any:
    @functools.wraps(apply)
    def apply_the_sum(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        found = taking()
        if found is None or found.is_applying:
            return apply(self, grads, trainable_variables)
        grads = list(grads)
        if any(is_overwritten(each) for each in trainable_variables or self._trainable_variables):
            refuse("a gradient is the new value of its variable, as the scales of float8 are")
        found.add(grads)
        if found.part + 1 < found.division.count:
            return None
        found.is_applying = True
        try:
            return apply(self, found.reduced(), trainable_variables)
        finally:
            found.is_applying = False

    return apply_the_sum


def _changing(change: Any) -> Any:
    @functools.wraps(change)
    def changed(*args: Any, **kwargs: Any) -> Any:
        with changing():
            return change(*args, **kwargs)

    return changed


def _may_change() -> bool:
    found = taking()
    return found is None or found.is_applying or getattr(_thread, "may_change", False)


def _only_of_metrics(assign: Any) -> Any:
    """Refuse a layer that changes its state: each part would see and change it, and not the batch."""

    @functools.wraps(assign)
    def assign_in_parts(self: Any, value: Any) -> Any:
        found = taking()
        if found is not None and not _may_change() and not found.division.has_metric(self):
            refuse(f"a layer changes its state {self.path} in training")
        with changing():
            return assign(self, value)

    return assign_in_parts


def _watch_variables_of_tensorflow() -> None:
    """Refuse the same of a `tf.Variable` that no Keras variable holds."""
    from tensorflow.python.distribute import values
    from tensorflow.python.ops import resource_variable_ops

    def refusing(change: Any) -> Any:
        @functools.wraps(change)
        def change_in_parts(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not _may_change():
                refuse(f"the variable {self.name} is changed in training")
            with changing():
                return change(self, *args, **kwargs)

        return change_in_parts

    for base in (resource_variable_ops.BaseResourceVariable, values.DistributedVariable):
        for owner in (base, *_subclasses(base)):
            for name, method in list(vars(owner).items()):
                if name.startswith(("assign", "scatter_", "batch_scatter_")) and callable(method):
                    setattr(owner, name, refusing(method))


def _subclasses(owner: Any) -> Iterator[Any]:
    for each in owner.__subclasses__():
        yield each
        yield from _subclasses(each)
