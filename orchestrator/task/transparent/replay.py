"""Passes over a fit's data up to the position of its backup, with the same iterators and the same shuffles.

Each epoch is shuffled anew from a state that its iterator advances. Where making the iterator does all of that, the
iterators of the epochs that are done are only made again. Of any other data these epochs are read again.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import time
import warnings

from orchestrator.task.transparent.data import changes_when_read, rows_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, ClassVar


class Course:
    """The progress of one fit through its epochs. It is entered as a context for the duration of the fit."""

    current: ClassVar[Course | None] = None

    def __init__(self, first_epoch: int, workers: int = 1) -> None:
        """Take the first epoch that the script asks for, and how many threads make its batches in tf_keras."""
        self.first_epoch = first_epoch
        self.workers = workers
        self.epoch = first_epoch
        self.batch = 0
        self._handler: Any = None
        self.first_batch: Any = None
        """The first batch of a generator or Sequence, which Keras reads before it trains."""
        self.begins_with: list[list[float]] = []
        """The first global batch of each iterator over its data, summed up, and the kind: see `first_batch.py`."""
        self.validation: Validation | None = None
        """What the epochs are validated on, if they are."""
        self.is_compared = False
        self.calls = 0
        """How many steps it has begun, since it began or went on."""
        self.signature: tuple[float, ...] = ()
        """What tells its model, as it is compiled, and the function that calls it from others."""
        self.is_proved = False
        """Whether its steps are proved equal to those of one process, as far as they can be: see `proof.py`."""
        self.when_traced: Callable[[Any], object] | None = None
        """Called once the steps are traced, before the first one runs."""
        self.figures: Callable[[], Any] | None = None
        """Returns the figures of an epoch whose batches were all done before the restart."""

    def traced(self, model: Any) -> None:
        """Call, once, the function that waited until the steps were traced."""
        action, self.when_traced = self.when_traced, None
        if action is not None:
            action(model)

    def __enter__(self) -> Course:
        Course.current = self
        return self

    def __exit__(self, *_error: object) -> None:
        Course.current = None

    def keep_batch(self, batch: Any) -> None:
        if self.first_batch is None:
            self.first_batch = batch

    def keep_handler(self, handler: Any) -> None:
        """Remember the handler of the training data: the first that Keras makes in a fit. Later ones validate."""
        if self._handler is None:
            self._handler = handler

    @property
    def is_read_by_many(self) -> bool:
        """Whether threads or processes beside each other make the batches in Python, and draw by turns there."""
        adapter = getattr(self._handler, "data_adapter", None)
        return getattr(adapter, "enqueuer", None) is not None or self.workers > 1

    @property
    def awaits_data(self) -> bool:
        """Whether what is shared next is the training data."""
        return self._handler is None

    def example(self) -> Any:
        """Return symbols in the shape of a batch of Keras 3; None if the shape is unknown."""
        return _example(self._handler) if self._handler is not None else None

    def trace(self, model: Any) -> bool:
        """Trace the model's steps before any runs: then what they make, as optimizers of its own, can be restored.

        The data's iterator is made in the graph of that trace alone, so nothing is read or drawn. The trace may fail
        where the step reads what a callback sets when an epoch begins. What was made may have no value until the first
        step or a restore gives it one. Return False unless the steps were traced.
        """
        import tensorflow as tf

        data = getattr(self._handler, "_distributed_dataset", getattr(self._handler, "_dataset", None))
        steps = graph_of(model.train_function)
        if steps is None or data is None:
            return False
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # in a graph, the options of distributed data are not known
                tf.function(lambda: steps(iter(data)), autograph=False).get_concrete_function()
        except Exception:
            model.make_train_function(force=True)  # a graph whose trace failed is not whole
            return False
        return True

    def leap(self, epoch: int, batch: int) -> None:
        """Continue at this epoch and batch when Keras next iterates over the data."""
        self.epoch, self.batch = epoch, batch
        if self._handler is not None:
            self._handler._orch_course = self

    def passing_over(self, reads_all: bool) -> Passing:
        """Return the count of the batches that are read up to the position."""
        each = self.steps or 0
        return Passing(self.batch + each * self.epochs_done * reads_all)

    def pass_over_validation(self, epoch: int, passing: Passing) -> None:
        """Do to what the validation of an epoch draws its order from what that has done."""
        if self.validation is not None:
            self.validation.pass_over(epoch, passing)

    @property
    def steps(self) -> int | None:
        """The number of batches of an epoch; None if unknown."""
        for name in ("num_batches", "inferred_steps"):
            steps = getattr(self._handler, name, None)
            if steps is not None:
                return int(steps)
        return None

    def done_after(self, batch: int) -> int:
        """Return how many batches of an epoch are done after this one.

        Keras 3 numbers the batches of `steps_per_execution` as if the data did not end among them.
        """
        ends = None if getattr(self._handler, "steps_per_epoch", None) else self.steps
        return min(batch + 1, ends or batch + 1)

    @property
    def epochs_done(self) -> int:
        return self.epoch - self.first_epoch


class Validation:
    """What a fit validates its epochs on. It may share a shuffle, or a generator's state, with the training data.

    Keras makes a second iterator at each epoch's end where it knows the length, or goes on with the one that it has: so
    the iterators of the epochs that are passed over are Keras's own, and the validation that follows goes on with them.
    """

    def __init__(self, model: Any, given: dict[str, Any]) -> None:
        """Take the arguments of `fit` by name."""
        self._model = model
        self._given = given
        self._reads_all: bool | None = None
        """Whether an epoch's batches are read. Keras's length of what has none is wrong once it was read."""

    def pass_over(self, epoch: int, passing: Passing) -> None:
        """Read what an epoch's validation has read, as far as that may change what is read later."""
        freq, data = self._given.get("validation_freq") or 1, self._given.get("validation_data")
        is_due = (epoch + 1) % freq == 0 if isinstance(freq, int) else epoch + 1 in freq
        if data is None or isinstance(data, (tuple, list)) or not is_due:
            return  # arrays are read in one order
        with contextlib.suppress(StopIteration):
            if hasattr(self._model, "metrics_variables"):
                self._read_by_keras3(passing)
            else:
                self._read_by_keras2(passing)

    def _read_by_keras3(self, passing: Passing) -> None:
        model, given = self._model, self._given
        iterator = model._eval_epoch_iterator
        if iterator is None:
            owner: Any = sys.modules["keras.src.backend.tensorflow.trainer"].TFEpochIterator
            iterator = model._eval_epoch_iterator = owner(
                x=given["validation_data"],
                batch_size=given.get("validation_batch_size") or given.get("batch_size"),
                distribute_strategy=model.distribute_strategy,
                steps_per_execution=model.steps_per_execution,
                steps_per_epoch=given.get("validation_steps"),
                shuffle=False,
            )
        if self._reads_all is None:
            self._reads_all = _reads_all(
                iterator.data_adapter, iterator.steps_per_epoch, iterator.num_batches
            )
        with iterator.catch_stop_iteration():
            for begin, end, batches in iterator._enumerate_iterator():
                passing.pull(batches, end - begin + 1 if self._reads_all else 0)

    def _read_by_keras2(self, passing: Passing) -> None:
        model, given = self._model, self._given
        if getattr(model, "_eval_data_handler", None) is None:
            adapters: Any = sys.modules["tf_keras.src.engine.data_adapter"]
            names = ("max_queue_size", "workers", "use_multiprocessing")
            model._eval_data_handler = adapters.get_data_handler(
                x=given["validation_data"],
                batch_size=given.get("validation_batch_size") or given.get("batch_size"),
                steps_per_epoch=given.get("validation_steps"),
                model=model,
                steps_per_execution=model._steps_per_execution,
                **{name: given[name] for name in names if name in given},
            )
        handler = model._eval_data_handler
        if self._reads_all is None:  # each evaluation makes an iterator anew
            self._reads_all = _reads_all(handler._adapter, None, handler.inferred_steps)
        for _, batches in handler.enumerate_epochs():
            passing.pull(batches, (handler.inferred_steps or sys.maxsize) if self._reads_all else 0)


class Passing:
    """Counts the batches that are read and not trained, and tells how many there are to come."""

    current: ClassVar[Passing | None] = None
    """The count that goes on, for whoever tells the shim that this task is not standing still."""

    def __init__(self, total: int) -> None:
        self.done = 0
        self.total = total
        """0 or too few where the length of an epoch is not known."""
        self._began_at = self._told_at = time.monotonic()

    def __enter__(self) -> Passing:
        Passing.current = self
        return self

    def __exit__(self, *_error: object) -> None:
        Passing.current = None
        self._tell(PASSING_TOLD_EVERY_S)

    def pull(self, iterator: Any, count: int, least: int = 1) -> None:
        """Read batches, fewer where the data ends, as one call of several steps does.

        Raises:
            StopIteration: There were fewer than `least`.
        """
        for number in range(count):
            try:
                next(iterator)
            except StopIteration:
                if number < least:
                    raise
                return
            self.done += 1
            self._tell(PASSING_TOLD_EVERY_S)

    def pulls(self, iterator: Any, count: int, least: int = 1) -> bool:
        """Read batches of the epoch that was interrupted. Return False where there are too few, and say so."""
        try:
            self.pull(iterator, count, least)
        except StopIteration:
            ended = "ended before the place where the training was interrupted: it is not the same as before"
            print(f"orch: the data {ended}", file=sys.stderr, flush=True)
            return False
        return True

    def sentence(self, now: float) -> str:
        """Say how far it is, and how long it takes."""
        said = f"passing over batch {self.done:,}"
        if self.done > self.total:
            return said
        left_s = (now - self._began_at) / max(1, self.done) * (self.total - self.done)
        return f"{said} of {self.total:,}, {_in_words(left_s)} left"

    def _tell(self, every_s: float) -> None:
        now = time.monotonic()
        if now - self._told_at >= every_s:
            self._told_at = now
            print(f"orch: {self.sentence(now)}", file=sys.stderr, flush=True)


PASSING_TOLD_EVERY_S = 10.0


def _in_words(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"


def build_without_data(trainer: Any) -> None:
    """Have Keras 3 build the model from the shape of a batch, and not from a batch.

    Under a strategy, Keras builds the model from a first batch. Reading that batch advances the state of the shuffle,
    and the script would see its data in another order than without a strategy.
    """
    build = trainer._maybe_symbolic_build

    def _maybe_symbolic_build(self: Any, iterator: Any = None, data_batch: Any = None) -> None:
        example = _example(iterator) if iterator is not None else None
        if example is not None:
            iterator, data_batch = None, example
        build(self, iterator=iterator, data_batch=data_batch)

    trainer._maybe_symbolic_build = _maybe_symbolic_build


def install_keras3(epoch_iterator: Any) -> None:
    """Patch TFEpochIterator, which makes the iterators and counts the steps."""
    create, enumerate_steps = epoch_iterator.__init__, epoch_iterator._enumerate_iterator

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        create(self, *args, **kwargs)
        if Course.current is not None:
            Course.current.keep_handler(self)

    def _enumerate_iterator(self: Any) -> Iterator[tuple[int, int, Any]]:
        course = self.__dict__.pop("_orch_course", None)
        if course is None:
            yield from enumerate_steps(self)
            return
        reads_all = _reads_all(self.data_adapter, self.steps_per_epoch, self.num_batches)
        with course.passing_over(reads_all) as passing:
            for epoch in range(course.first_epoch, course.epoch):
                with self.catch_stop_iteration():
                    for begin, end, iterator in enumerate_steps(self):
                        passing.pull(iterator, end - begin + 1 if reads_all else 0)
                course.pass_over_validation(epoch, passing)
            steps = enumerate_steps(self)
            for begin, end, iterator in steps:
                # Where the data has ended, Keras finds that in its next step, and ends the epoch.
                if end >= course.batch or not passing.pulls(iterator, end - begin + 1):
                    break
            else:
                return
        yield begin, end, iterator
        yield from steps

    adapters: Any = sys.modules.get("keras.src.trainers.data_adapters.generator_data_adapter")
    if adapters is not None:
        adapters.peek_and_restore = _keeping(adapters.peek_and_restore, lambda peeked: peeked[0][:1])
        owner = sys.modules["keras.src.trainers.data_adapters.py_dataset_adapter"].PyDatasetAdapter
        owner._standardize_batch = _keeping(owner._standardize_batch, lambda batch: batch)
    epoch_iterator.__init__ = __init__
    epoch_iterator._enumerate_iterator = _enumerate_iterator


def _example(epoch_iterator: Any) -> Any:
    """Return symbols in the shape of a batch of one process; None if its rank is unknown before the data is read.

    Lengths that are unknown, as of texts, stay so: one process builds its model from the same. The number of examples
    is given where it is known, since a loss may split the batch into three.
    """
    import tensorflow as tf

    unknown, symbol = False, sys.modules["keras"].KerasTensor
    first_batch = Course.current.first_batch if Course.current is not None else None
    known = [len(each) for each in tf.nest.flatten(first_batch) if getattr(each, "shape", ())]
    dataset = getattr(epoch_iterator._distributed_dataset, "_original_dataset", None)
    rows = known[0] if known else -1 if dataset is None else rows_of(dataset)

    def symbols(spec: Any) -> Any:
        nonlocal unknown
        first = getattr(spec, "_value_specs", (spec,))[0]  # the spec of the first replica
        if not isinstance(first, tf.TensorSpec) or first.shape.rank is None:
            unknown = True
            return None
        return symbol([rows if rows > 0 else None, *first.shape[1:]], first.dtype.name)

    example = tf.nest.map_structure(symbols, epoch_iterator._distributed_dataset.element_spec)
    return None if unknown else example


def _keeping(read: Callable[..., Any], batch_in: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return a function that reads the first batch of a fit, and keeps it."""

    @functools.wraps(read)
    def keeping(*args: Any) -> Any:
        found = read(*args)
        if Course.current is not None:
            Course.current.keep_batch(batch_in(found))
        return found

    return keeping


def _reads_all(adapter: Any, steps_per_epoch: Any, known_steps: Any) -> bool:
    """Return whether what an epoch's iterator leaves behind follows only from reading it to the end."""
    if steps_per_epoch or known_steps is None:
        return True
    if type(adapter).__name__ in _OF_ARRAYS:
        return False  # Keras draws the order of each epoch from the same seeds
    dataset = getattr(adapter, "_dataset", None)
    return dataset is None or changes_when_read(dataset)


_OF_ARRAYS = (
    "ArrayDataAdapter",
    "TensorLikeDataAdapter",
    "GenericArrayLikeDataAdapter",
    "CompositeTensorDataAdapter",
)
"""The adapters of Keras 3 and tf_keras for what lies in memory."""


def install_keras2(model: Any, data_handler: Any) -> None:
    """Patch tf_keras: its DataHandler, and what tells fit its first epoch and step, and the figures of an epoch."""
    create, enumerate_epochs = data_handler.__init__, data_handler.enumerate_epochs
    counters = model._maybe_load_initial_counters_from_ckpt
    utils: Any = sys.modules["tf_keras.src.utils.tf_utils"]
    synced = utils.sync_to_numpy_or_python_type

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        create(self, *args, **kwargs)
        if Course.current is not None:
            Course.current.keep_handler(self)

    def initial_counters(self: Any, steps_per_epoch: Any, initial_epoch: int) -> Any:
        course = Course.current
        if course is None or (course.epoch, course.batch) == (course.first_epoch, 0):
            return counters(self, steps_per_epoch, initial_epoch)
        return course.epoch, course.batch

    def enumerate_from_course(self: Any) -> Iterator[tuple[int, Any]]:
        course = self.__dict__.pop("_orch_course", None)
        if course is None:
            yield from enumerate_epochs(self)
            return
        with self._truncate_execution_to_epoch():
            yield from _epochs(self, course)

    def sync_to_numpy_or_python_type(logs: Any) -> Any:
        course = Course.current
        if logs is None and course is not None and course.figures is not None:
            # fit refuses an epoch of which no batch has told any.
            logs, course.figures = course.figures(), None
        return synced(logs)

    adapters: Any = sys.modules.get("tf_keras.src.engine.data_adapter")
    for name in ("GeneratorDataAdapter", "KerasSequenceAdapter"):
        if owner := getattr(adapters, name, None):
            owner._peek_and_restore = staticmethod(
                _keeping(owner._peek_and_restore, lambda peeked: peeked[0])
            )
    utils.sync_to_numpy_or_python_type = sync_to_numpy_or_python_type
    data_handler.__init__ = __init__
    data_handler.enumerate_epochs = enumerate_from_course
    model._maybe_load_initial_counters_from_ckpt = initial_counters


def graph_of(function: Any) -> Any:
    """Return the `tf.function` that a Keras makes of its steps, within this function; None where it makes none."""
    function = inspect.unwrap(function, stop=lambda each: hasattr(each, "get_concrete_function"))
    if not hasattr(function, "get_concrete_function") and inspect.isfunction(function):
        function = inspect.getclosurevars(function).nonlocals.get("multi_step_on_iterator")
    return function if hasattr(function, "get_concrete_function") else None


def is_traceable(model: Any) -> bool:
    """Return whether tf_keras makes a graph of the model's steps."""
    return hasattr(model.train_function, "get_concrete_function")


def _epochs(handler: Any, course: Course) -> Iterator[tuple[int, Any]]:
    """Do what DataHandler.enumerate_epochs does, from the course's epoch and batch on."""
    iterator = iter(handler._dataset)
    anew = handler._adapter.should_recreate_iterator()
    reads_all = _reads_all(handler._adapter, not anew, handler.inferred_steps)
    passing = course.passing_over(reads_all)
    for epoch in range(course.first_epoch, handler._epochs):
        if handler._insufficient_data:
            return
        if anew:
            iterator = iter(handler._dataset)
        if epoch < course.epoch:
            with passing:
                with contextlib.suppress(StopIteration):
                    passing.pull(iterator, (handler.inferred_steps or sys.maxsize) if reads_all else 0)
                course.pass_over_validation(epoch, passing)
        else:
            within = course.batch if epoch == course.epoch else 0
            with passing:
                passing.pulls(iterator, within, within)
            if within and is_traceable(handler._model):  # some metrics are made then, and can be restored
                handler._model.train_function.get_concrete_function(iterator)
            yield epoch, iterator
        handler._adapter.on_epoch_end()
