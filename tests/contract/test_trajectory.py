"""After a restart, with real TensorFlow: the rest of the data, and the callbacks, are as if nothing had failed."""

from __future__ import annotations

import itertools
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.task.transparent import backup, replay
from orchestrator.task.transparent.data import changes_when_read
from tests.contract.strategy_harness import with_row
from tests.contract.test_runtime_tensorflow import Gang, gang, seeded

__all__ = ["gang"]

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(300)]

EXAMPLES, BATCH, EPOCHS = 64, 16, 3
ODD = 61
"""No divisor of what an epoch counts: else all epochs would read the same."""
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
        return np.int32((row + len(called)) % ODD)

    moving = lambda row, label: (tf.numpy_function(moved, [row], tf.int32), label)  # noqa: E731
    return slices().map(moving).map(lambda row, label: (tf.ensure_shape(row, (1,)), label)).batch(BATCH)


def counting() -> Any:
    """Return a data set with a variable that counts what was read."""
    import tensorflow as tf

    count = tf.Variable(0)
    return slices().map(lambda row, label: ((row + count.assign_add(1)) % ODD, label)).batch(BATCH)


def interleaved() -> Any:
    import tensorflow as tf

    parts = tf.data.Dataset.range(4)
    return parts.interleave(lambda part: slices().shard(4, part).shuffle(32), cycle_length=2).batch(BATCH)


def sampled() -> Any:
    import tensorflow as tf

    one, other = slices().shuffle(64), slices().shuffle(64)
    return tf.data.Dataset.sample_from_datasets([one, other], [0.5, 0.5]).batch(BATCH).take(4)


DATA: dict[str, Callable[[Any], tuple[Any, dict[str, Any]]]] = {
    "arrays": lambda _: ((x, y), {}),
    "batches of the script": lambda base: (batches_of(base), {}),
    "batches of threads": lambda base: (batches_of(base, workers=2), {}),
    "from_generator": lambda _: (generated(), {}),
    "a generator": lambda _: (endless(), {"steps_per_epoch": 4}),
    "shuffle": lambda _: (slices().shuffle(64).batch(BATCH).prefetch(2), {}),
    "shuffle, cache": lambda _: (slices().shuffle(64).batch(BATCH).cache(), {}),
    "cache, shuffle": lambda _: (slices().cache().shuffle(64).batch(BATCH), {}),
    "concatenate": lambda _: (
        slices().take(32).shuffle(32).concatenate(slices().skip(32).shuffle(32)).batch(BATCH),
        {},
    ),
    "repeat": lambda _: (slices().shuffle(64).repeat().batch(BATCH), {"steps_per_epoch": 3}),
    "repeat within": lambda _: (slices().shuffle(64).repeat(2).batch(BATCH), {}),
    "zip": lambda _: (
        slices().shuffle(64).map(lambda *row: row).filter(lambda *_: True).batch(BATCH),
        {},
    ),
    "interleave": lambda _: (interleaved(), {}),
    "sampled": lambda _: (sampled(), {}),
    "a function of Python": lambda _: (of_python(), {}),
    "a variable": lambda _: (counting(), {}),
}


def read_by_keras(name: str, leap: tuple[int, int] | None = None, at_once: int = 1) -> list[Batch]:
    """Return what a fit reads, so many steps a call; with `leap`, what one reads that goes on there after a restart."""
    keras = pytest.importorskip("keras")
    import tensorflow as tf

    class Handler(sys.modules["keras.src.backend.tensorflow.trainer"].TFEpochIterator):  # type: ignore[misc]
        """Patched in the place of Keras's own."""

    replay.install_keras3(Handler)
    keras.utils.set_random_seed(3)
    data, given = DATA[name](keras.utils.PyDataset)
    if isinstance(data, tuple):
        given |= {"y": data[1], "batch_size": BATCH}
        data = data[0]
    course, found = replay.Course(0), list[Batch]()
    strategy = tf.distribute.get_strategy()
    with course:
        handler = Handler(
            x=data, **given, shuffle=True, distribute_strategy=strategy, steps_per_execution=at_once
        )
        handler.reset()
        if leap is not None:
            course.leap(*leap)
        for epoch in range(course.epoch, EPOCHS):
            with handler.catch_stop_iteration():
                for place, end, iterator in handler:
                    batches = list(itertools.islice(iterator, end - place + 1))
                    if not batches:
                        raise StopIteration  # as Keras's steps do where the data has ended
                    for step, batch in enumerate(batches, place):
                        found.append((epoch, step, tuple(np.asarray(batch[0])[:, 0].tolist())))
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
                for place in range(first, handler.inferred_steps or 4):
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
    assert read(name, (2, 2)) == [each for each in whole if each[:2] >= (2, 2)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name", ["arrays", "batches of the script", "batches of threads", "from_generator", "a generator", "zip"]
)
def test_an_epoch_that_ends_within_a_call_of_several_steps_is_passed_over_as_it_was_trained(
    name: str,
) -> None:
    whole = read_by_keras(name, at_once=3)
    assert read_by_keras(name, (1, 3), at_once=3) == [each for each in whole if each[:2] >= (1, 3)]
    # Behind a call that has made one step or two, of the four of an epoch.
    assert read_by_keras(name, (1, 6), at_once=3) == [each for each in whole if each[0] == 2]


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


CALLBACKS = Path(__file__).parent / "scripts" / "transparent" / "callbacks.py"
RESCUED = {
    "strategy": "multi_worker_mirrored",
    "transparent": True,
    "rescue": True,
    "save_every_steps": 10**6,
}


@pytest.mark.long  # a minute of CPU each, and `make trajectory` kills at these moments too
@pytest.mark.parametrize("moment", ["epoch end", "step"])
def test_callbacks_that_only_the_chief_has_and_an_epochs_end_that_fails_change_nothing(
    gang: Callable[..., Gang], tmp_path: Path, moment: str
) -> None:
    """The learning rate is halved once an epoch on both workers, and the table has each epoch once."""
    ends, tables = dict[str, Any](), dict[str, list[str]]()
    for name in ("whole", "killed"):
        root, out = tmp_path / name, tmp_path / name / "out"
        env = {"ORCH_RUNTIME": json.dumps(with_row(RESCUED)), "ORCH_TASK": "worker:0"}
        env["ORCH_RESCUE_DIR"] = str(root / "shared" / "gen-000001")
        dies = {"DIES_AT": moment} if name == "killed" else {}
        run = gang(CALLBACKS, str(out), directories=seeded(root, 1, 2)[1], env=env | dies)
        if name == "killed":
            run.tasks[1].process.wait()
            run.tasks[0].order(stop={"grace_s": 60.0, "rescue": True})
            assert run.ended()[0] == 143, run.tasks[0].err
            [told] = [line["rescued"] for line in run.heard[0] if "rescued" in line]
            assert told.get("step") == (20 if moment == "epoch end" else 15), told
            answer, directories = seeded(root, 2, 2)
            env["ORCH_RESCUE_DIR"] = answer["path"]
            if moment == "epoch end":
                stops_where_workers_restore_different_weights(gang, root, directories, env)
                answer, directories = seeded(root, 3, 2)
                env["ORCH_RESCUE_DIR"] = answer["path"]
            run = gang(CALLBACKS, str(out), directories=directories, env=env)
        assert run.ended() == [0, 0], run.tasks[0].err
        ends[name] = [json.loads(task.out.strip().splitlines()[-1]) for task in run.tasks]
        tables[name] = Path(f"{out}.csv").read_text(encoding="utf-8").splitlines()
    assert ends["killed"] == ends["whole"], run.tasks[0].err
    assert ends["killed"][0]["rate"] == ends["killed"][1]["rate"]
    assert [row.partition(",")[0] for row in tables["killed"]] == ["epoch", "0", "1", "2"]
    assert tables["killed"] == tables["whole"]


APART = """
import json, os
import keras, numpy as np
x = np.random.default_rng(5).normal(size=(64, 8)).astype("float32")
model = keras.Sequential([keras.Input((8,)), keras.layers.BatchNormalization(), keras.layers.Dense(1)])
model.compile("sgd", "mse")
is_chief = json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 0
halving = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5 if epoch == 0 and is_chief else rate)
model.fit(x, x[:, :1], epochs=5, callbacks=[halving], verbose=0)
"""


@pytest.mark.long
def test_workers_that_come_apart_in_training_are_named_once(
    gang: Callable[..., Gang], tmp_path: Path
) -> None:
    script = tmp_path / "apart.py"
    script.write_text(APART, encoding="utf-8")
    env = {"ORCH_RUNTIME": json.dumps(with_row(RESCUED))}
    run = gang(script, directories=seeded(tmp_path, 1, 2)[1], env=env)
    assert run.ended() == [0, 0], run.tasks[0].err
    for heard in run.heard:
        said = [line["say"] for line in heard if "say" in line]
        [apart] = [each["message"] for each in said if each["kind"] == "transparent-apart"]
        assert re.match(
            r"at step 2 worker:1 differs from worker:0 in the weights, the learning rate: ", apart
        )


def stops_where_workers_restore_different_weights(
    gang: Callable[..., Gang], root: Path, directories: list[Path], env: dict[str, str]
) -> None:
    """Give worker 1 a file that is whole, of the same step, and holds other weights."""
    folder = backup.newest(backup.folder(str(directories[1]), 0))
    read = backup.read(backup.folder(str(directories[1]), 0))
    assert folder is not None
    assert read is not None
    read[0]["model/00000"][0, 0] += 1
    backup.write(folder, *read)
    run = gang(CALLBACKS, str(root / "apart"), directories=directories, env=env)
    assert run.ended() == [1, 1], run.tasks[1].err
    for index in (0, 1):
        [error] = [line["error"] for line in run.heard[index] if "error" in line]
        assert error["kind"] == "began-apart"
        assert (
            "after restoring step 20 worker:1 differs from worker:0 in the weights: they" in error["message"]
        )
        assert run.steps(index)[-1] == 20, "no step was made"
