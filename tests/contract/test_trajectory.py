"""Data that is passed over after a restart, with real TensorFlow in one process: the rest is what it would have been."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from orchestrator.task.transparent import replay
from orchestrator.task.transparent.data import changes_when_read

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(300)]

EXAMPLES, BATCH, EPOCHS = 128, 16, 4
x = np.arange(EXAMPLES, dtype="int32")[:, None]
y = np.zeros((EXAMPLES, 1), "float32")

Batch = tuple[int, int, tuple[int, ...]]
"""The epoch, the batch's place in it, and its examples."""


def slices() -> Any:
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices((x, y))


def generated() -> Any:
    """Return a data set whose generator draws another order each time."""
    import tensorflow as tf

    drawn = np.random.default_rng(7)

    def rows() -> Iterator[Any]:
        for row in drawn.permutation(EXAMPLES):
            yield x[row], y[row]

    signature = (tf.TensorSpec((1,), tf.int32), tf.TensorSpec((1,), tf.float32))
    return tf.data.Dataset.from_generator(rows, output_signature=signature).batch(BATCH)


def endless() -> Iterator[Any]:
    drawn = np.random.default_rng(11)
    while True:
        rows = drawn.integers(0, EXAMPLES, BATCH)
        yield x[rows], y[rows]


def batches_of(base: Any, **given: Any) -> Any:
    """Return a PyDataset or Sequence that shuffles after each epoch, and that Keras shuffles too."""

    class Batches(base):  # type: ignore[misc]
        def __init__(self, **given: Any) -> None:
            super().__init__(**given)
            self.order = np.arange(EXAMPLES)

        def __len__(self) -> int:
            return EXAMPLES // BATCH

        def __getitem__(self, place: int) -> Any:
            rows = self.order[place * BATCH : (place + 1) * BATCH]
            return x[rows], y[rows]

        def on_epoch_end(self) -> None:
            np.random.shuffle(self.order)

    return Batches(**given)


def of_python() -> Any:
    """Return a data set with a function of Python that counts its calls."""
    import tensorflow as tf

    called: list[int] = []

    def moved(row: Any) -> Any:
        called.append(0)
        return np.int32((row + len(called)) % EXAMPLES)

    moving = lambda row, label: (tf.numpy_function(moved, [row], tf.int32), label)  # noqa: E731
    return slices().map(moving).map(lambda row, label: (tf.ensure_shape(row, (1,)), label)).batch(BATCH)


def counting() -> Any:
    """Return a data set with a variable that counts what was read."""
    import tensorflow as tf

    count = tf.Variable(0)
    return slices().map(lambda row, label: ((row + count.assign_add(1)) % EXAMPLES, label)).batch(BATCH)


def interleaved() -> Any:
    import tensorflow as tf

    parts = tf.data.Dataset.range(4)
    return parts.interleave(lambda part: slices().shard(4, part).shuffle(32), cycle_length=2).batch(BATCH)


def sampled() -> Any:
    import tensorflow as tf

    one, other = slices().shuffle(64), slices().shuffle(64)
    return tf.data.Dataset.sample_from_datasets([one, other], [0.5, 0.5]).batch(BATCH).take(8)


DATA: dict[str, Callable[[Any], tuple[Any, dict[str, Any]]]] = {
    "arrays": lambda _: ((x, y), {}),
    "batches of the script": lambda base: (batches_of(base), {}),
    "batches of threads": lambda base: (batches_of(base, workers=2), {}),
    "from_generator": lambda _: (generated(), {}),
    "a generator": lambda _: (endless(), {"steps_per_epoch": 8}),
    "shuffle": lambda _: (slices().shuffle(64).batch(BATCH).prefetch(2), {}),
    "shuffle, cache": lambda _: (slices().shuffle(128).batch(BATCH).cache(), {}),
    "cache, shuffle": lambda _: (slices().cache().shuffle(128).batch(BATCH), {}),
    "concatenate": lambda _: (
        slices().take(64).shuffle(64).concatenate(slices().skip(64).shuffle(64)).batch(BATCH),
        {},
    ),
    "repeat": lambda _: (slices().shuffle(128).repeat().batch(BATCH), {"steps_per_epoch": 5}),
    "repeat within": lambda _: (slices().shuffle(128).repeat(2).batch(BATCH), {}),
    "zip": lambda _: (
        slices()
        .shuffle(128)
        .map(lambda row, label: (row, label))
        .filter(lambda row, label: True)
        .batch(BATCH),
        {},
    ),
    "interleave": lambda _: (interleaved(), {}),
    "sampled": lambda _: (sampled(), {}),
    "a function of Python": lambda _: (of_python(), {}),
    "a variable": lambda _: (counting(), {}),
}


def read_by_keras(name: str, leap: tuple[int, int] | None = None) -> list[Batch]:
    """Return what a fit reads; with `leap`, what one reads that goes on there after a restart."""
    keras = pytest.importorskip("keras")
    import tensorflow as tf

    class Handler(sys.modules["keras.src.backend.tensorflow.trainer"].TFEpochIterator):  # type: ignore[misc, name-defined]
        """Patched in the place of Keras's own."""

    replay.install_keras3(Handler)
    keras.utils.set_random_seed(3)
    data, given = DATA[name](keras.utils.PyDataset)
    if isinstance(data, tuple):
        given |= {"y": data[1], "batch_size": BATCH}
        data = data[0]
    course, found = replay.Course(0), list[Batch]()
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    with course:
        handler = Handler(x=data, **given, shuffle=True, distribute_strategy=strategy)
        handler.reset()
        if leap is not None:
            course.leap(*leap)
        for epoch in range(course.epoch, EPOCHS):
            with handler.catch_stop_iteration():
                for place, _, iterator in handler:
                    found.append((epoch, place, tuple(np.asarray(next(iterator)[0])[:, 0].tolist())))
    return found


def read_by_tf_keras(name: str, leap: tuple[int, int] | None = None) -> list[Batch]:
    tf_keras = pytest.importorskip("tf_keras")
    from importlib import import_module

    handlers = import_module("tf_keras.src.engine.data_adapter")

    class Handler(handlers.DataHandler):  # type: ignore[misc, name-defined]
        """Patched in the place of Keras's own."""

    class Model(tf_keras.Model):  # type: ignore[misc, name-defined]
        """Likewise."""

    replay.install_keras2(Model, Handler)
    tf_keras.utils.set_random_seed(3)
    data, given = DATA[name](tf_keras.utils.Sequence)
    if isinstance(data, tuple):
        given |= {"y": data[1], "batch_size": BATCH}
        data = data[0]
    model = Model()
    model.compile()
    course, found = replay.Course(0), list[Batch]()
    with course:
        handler = Handler(data, **given, shuffle=True, epochs=EPOCHS, model=model)
        if leap is not None:
            course.leap(*leap)
        for epoch, iterator in handler.enumerate_epochs():
            first = leap[1] if leap is not None and epoch == leap[0] else 0
            with handler.catch_stop_iteration():
                for place in range(first, handler.inferred_steps or 8):
                    found.append((epoch, place, tuple(np.asarray(next(iterator)[0])[:, 0].tolist())))
    return found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize("read", [read_by_keras, read_by_tf_keras])
def test_what_is_read_after_a_restart_is_what_would_have_been_read(
    read: Callable[..., list[Batch]], name: str
) -> None:
    if read is read_by_tf_keras and "threads" in name:
        pytest.skip("a Sequence of tf_keras has no threads of its own")
    whole = read(name)
    assert len({each[2] for each in whole}) > 2, "the batches differ, or nothing would show"
    for leap in ((2, 3), (2, 0)):
        assert read(name, leap) == [each for each in whole if each[:2] >= leap], leap


def test_only_data_that_changes_when_it_is_read_is_read_again() -> None:
    is_read = {name: changes_when_read(DATA[name](object)[0]) for name in ("shuffle", "zip")}
    assert not any(is_read.values())
    for name in (
        "cache, shuffle",
        "concatenate",
        "repeat within",
        "interleave",
        "a function of Python",
        "a variable",
    ):
        assert changes_when_read(DATA[name](object)[0]), name


def test_it_is_told_how_many_batches_are_passed_over() -> None:
    course = replay.Course(0)
    course.epoch, course.batch = 2, 500
    course._handler = type("Handler", (), {"num_batches": 2000})()
    passing = course.passing_over(True)
    passing._began_at = 100.0
    passing.done = 4000
    assert passing.sentence(180.0) == "passing over batch 4,000 of 4,500, 10 s left"
    assert course.passing_over(False).total == 500
    passing.total = 0
    assert passing.sentence(180.0) == "passing over batch 4,000"
