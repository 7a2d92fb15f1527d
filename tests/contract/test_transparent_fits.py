"""Fits that are told from each other, and figures of the whole batch: two workers against one process."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.checkpoints import verify
from orchestrator.task.transparent import backup, chance, replay
from orchestrator.task.transparent.identity import SAMPLE_BYTES, difference, differences, identity
from tests.contract.test_runtime_tensorflow import Gang, seeded
from tests.contract.test_transparent import SCRIPTS, alone, environment, gang, last_line, said

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(600)]

__all__ = ["gang"]


def test_a_script_that_skips_the_folds_that_are_there_goes_on_with_the_right_ones(
    gang: Callable[..., Gang], tmp_path: Path
) -> None:
    script, host = SCRIPTS / "folds.py", tmp_path / "host"
    (tmp_path / "alone").mkdir()
    single = alone(str(script), cwd=tmp_path / "alone")
    env = environment(save_every_steps=3, replicas_on_cpu=1)
    first = gang(script, directories=seeded(tmp_path, 1, 2)[1], env=env, host_dir=host)
    chief = str(tmp_path / "shared" / "gen-000001")
    first.wait_for(lambda: (verify(chief)["checkpoint"] or {}).get("global_step", 0) >= 36, "a backup")
    first.close()
    answer, directories = seeded(tmp_path, 2, 2)
    second = gang(script, directories=directories, env=env, host_dir=host)
    assert second.ended() == [0, 0], second.tasks[0].err
    assert "there: 0" in second.tasks[0].out
    assert "fit 2 comes before fit 1, which differs in the data: skipped or reordered" in said(second)
    assert "fit 2 goes on from its backup, in epoch" in said(second)
    assert "fit 1 goes on" not in said(second)
    assert "fit 3 goes on" not in said(second)
    assert "folds.py:21: return 1 - ops.sum(" in said(second), "a function is computed on the whole batch"
    assert second.steps()[0] >= answer["global_step"]
    stdout, stderr = single.communicate(timeout=100)
    assert single.returncode == 0, stderr
    expected, results = last_line(stdout), [last_line(task.out) for task in second.tasks]
    assert results[0] == results[1]
    assert results[0]["weights"] == pytest.approx(expected["weights"], rel=1e-4)
    assert list(results[0]["histories"]) == ["1", "2"]
    for fold, history in results[0]["histories"].items():
        for name, values in history.items():
            assert values == pytest.approx(expected["histories"][fold][name], rel=1e-3), (fold, name)


def test_workers_that_have_other_data_or_see_it_in_another_order_are_named(
    gang: Callable[..., Gang], tmp_path: Path
) -> None:
    run = gang(
        SCRIPTS / "other_data.py",
        directories=[tmp_path / "0", tmp_path / "1"],
        env=environment(replicas_on_cpu=1),
    )
    assert run.ended() == [1, 1], run.tasks[0].err
    orders: list[list[str]] = []
    for task, heard in zip(run.tasks, run.heard, strict=True):
        other, order, *_at_its_end = (message["error"] for message in heard if "error" in message)
        assert (other["kind"], order["kind"]) == ("unsupported", "unsupported")
        assert other["message"].startswith(
            "the workers do not train the same: worker:1 and worker:0 differ in the data of a fit"
        )
        assert order["message"].startswith(
            "the workers see the data in another order: the first batch of worker:1 is another one than that of "
            "worker:0"
        )
        refused, *told = task.out.splitlines()
        assert refused == "refused"
        listed, *fits = [json.loads(line) for line in told]
        orders.append(listed["order"])
        # Of lines the length is unknown, so Keras counts an update more at each of both epochs' ends.
        updates = {"rows": 6, "lines": 14, "files": 20, "noisy": 26, "words": 32}
        assert {fit["fit"]: fit["steps"] for fit in fits} == updates, "data in one order trains"
        assert [fit["rate"] for fit in fits] == pytest.approx([1e-6] * 5)
    assert orders[0] != orders[1], "the file system lists the same files in another order on each worker"
    assert sorted(orders[0]) == sorted(orders[1])


class Read:
    """A Sequence, which is read by nobody but Keras."""

    def __len__(self) -> int:
        raise AssertionError("it was read")

    __getitem__ = __len__


def files(tmp: str, names: str = "abc") -> Any:
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices([f"{tmp}/{name}.png" for name in names]).batch(2)


def test_a_fit_is_known_by_what_it_trains_and_not_by_names(tmp_path: Path) -> None:
    keras = pytest.importorskip("keras")
    import numpy as np

    class Vae(keras.Model):  # type: ignore[misc, name-defined]
        def __init__(self, beta: float, **given: Any) -> None:
            super().__init__(**given)
            self.beta = beta
            self.inner = keras.layers.Dense(2, activation=None if beta > 1 else "relu")

        def call(self, x: Any) -> Any:
            return self.inner(x)

    def known(
        *, beta: float = 1.0, seed: int = 1, rate: float = 0.1, first: Any = None, tmp: str = "", **given: Any
    ) -> list[float]:
        keras.utils.set_random_seed(seed)
        model = Vae(beta, name=f"at-{given.get('verbose')}")
        model(np.zeros((1, 6), "float32"))
        model.compile(keras.optimizers.Adam(rate), lambda t, p: abs(t - p))
        return identity(model, {"x": x, "epochs": 3, **given}, first, tmp)[0]

    x = np.random.default_rng(0).normal(size=(100, 6)).astype("float32")
    large = np.arange(3 * SAMPLE_BYTES // 4, dtype="float32").reshape(-1, 8)
    last = large.copy()
    last[-1] = 0
    one = known()
    assert difference(one, known(verbose=2, x=x.copy())) == ""
    assert difference(one, known(x=x * np.float32(1.0000001))) == "", "rounded in another way"
    assert difference(one, known(seed=2)) == "the starting weights"
    for changed in (
        {"beta": 2.0},
        {"rate": 0.2},
        {"batch_size": 8},
        {"initial_epoch": 1},
        {"callbacks": [one]},
    ):
        assert difference(one, known(**changed)) == "the model or how it is compiled", changed
    others: list[dict[str, Any]] = [
        {"x": np.delete(x, 50, axis=0)},
        {"x": x[::-1]},
        {"x": np.concatenate([x[:-1], x[:1]])},
        {"validation_data": (x, x)},
        {"x": large},
        {"x": last},
        {"x": Read()},
        {"x": Read(), "first": [x[:4]]},
        {"x": files("/data/1", "acb")},
        {"x": files("/data/1")},
        {"x": {"words": np.array([["a"], ["b"]], dtype=object)}},
        {"x": {"words": np.array([["a"], ["c"]], dtype=object)}},
    ]
    each = [known(**other) for other in others]
    for place, mine in enumerate(each):
        assert difference(mine, known(**others[place])) == ""
        for theirs in (one, *each[:place]):
            assert difference(mine, theirs) == "the data", others[place]
    assert difference(each[9], known(x=files("/scratch/7"))) == "", "the same files in another directory"


def test_a_fit_is_known_by_what_does_not_follow_the_number_of_replicas() -> None:
    keras, tf = pytest.importorskip("keras"), pytest.importorskip("tensorflow")
    x = np.random.default_rng(0).integers(9, size=(96, 6))

    def known(replicas: int, *, rate: float = 0.1, units: int = 2, **given: Any) -> list[float]:
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(units)])
        model.compile(keras.optimizers.Adam(rate * replicas), "mse")
        return identity(model, {"x": x, "batch_size": 8 * replicas, **given}, None, "")[0]

    def read(rows: int) -> Any:
        return tf.data.Dataset.from_tensor_slices(x).batch(rows, drop_remainder=True)

    assert differences(known(3), known(2)) == ["the model or how it is compiled"]
    assert differences(known(3), known(2), 2 / 3) == []
    of_data = known(3, x=read(24)), known(2, x=read(16))
    assert differences(*of_data) == ["the model or how it is compiled", "the data"]
    assert differences(*of_data, 2 / 3) == []
    steps = known(3, steps_per_epoch=4), known(2, steps_per_epoch=6)
    assert differences(*steps, 2 / 3) == []
    others: list[dict[str, Any]] = [
        {"rate": 0.02},
        {"units": 3},
        {"class_weight": {0: 2.0}},
        {"batch_size": 40},
    ]
    for changed in others:
        assert differences(known(3), known(2, **changed), 2 / 3)[0] == "the model or how it is compiled"
    assert differences(known(3), known(2, x=x[::-1]), 2 / 3) == ["the data"]


def test_what_is_drawn_after_a_fit_that_is_passed_over_is_what_was_drawn_then() -> None:
    import json
    import random

    import numpy as np
    from tensorflow.python.framework import random_seed

    pytest.importorskip("keras").utils.set_random_seed(3)

    def drawn() -> list[float]:
        # TensorFlow keeps the operation of each seed, so in one process the seed is what can be compared.
        return [random.random(), float(np.random.normal()), float(random_seed.get_seed(None)[1])]

    drawn()
    state = json.loads(json.dumps(chance.state()))
    expected = drawn()
    drawn()
    chance.restore(state)
    assert drawn() == expected


def test_tensorflow_lists_files_in_one_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    import tensorflow as tf
    from tensorflow.python.lib.io import file_io

    for name in (os.listdir.__name__, os.scandir.__name__):
        monkeypatch.setattr(os, name, getattr(os, name))  # what is changed is put back
    for name in ("list_directory_v2", "get_matching_files_v2"):
        monkeypatch.setattr(file_io, name, getattr(file_io, name))
    for name in ("listdir", "glob"):
        monkeypatch.setattr(tf.io.gfile, name, getattr(tf.io.gfile, name))
    names = [f"{number * 7919 % 1000}.txt" for number in range(60)]
    for name in names:
        (tmp_path / name).touch()
    chance.equal_order()
    assert tf.io.gfile.listdir(str(tmp_path)) == sorted(names)
    assert [Path(each).name for each in tf.io.gfile.glob(f"{tmp_path}/*")] == sorted(names)
    assert next(tf.io.gfile.walk(str(tmp_path)))[2] == sorted(names)
    listed = tf.data.Dataset.list_files(f"{tmp_path}/*", shuffle=False).as_numpy_iterator()
    assert [Path(each.decode()).name for each in listed] == sorted(names)


@pytest.mark.parametrize(
    ("library", "freq", "kept"),
    [
        ("keras", 2, "known"),
        ("keras", [1], "some steps"),
        ("tf_keras", 2, "some steps"),
        *[
            (library, 1, kept)
            for library in ("keras", "tf_keras")
            for kept in ("known", "unknown", "drawn in Python")
        ],
    ],
)
def test_a_restart_passes_over_what_validation_has_drawn_of_a_shuffle_that_it_shares(
    library: str, freq: Any, kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    keras, tf = pytest.importorskip(library), pytest.importorskip("tensorflow")
    import numpy as np

    if library == "keras":
        owner = importlib.import_module("keras.src.backend.tensorflow.trainer").TFEpochIterator
        adapters = importlib.import_module("keras.src.trainers.data_adapters.generator_data_adapter")
        patched = [(owner, "__init__"), (owner, "_enumerate_iterator"), (adapters, "peek_and_restore")]
        patched += [
            (
                sys.modules["keras.src.trainers.data_adapters.py_dataset_adapter"].PyDatasetAdapter,
                "_standardize_batch",
            )
        ]
    else:
        adapters = importlib.import_module("tf_keras.src.engine.data_adapter")
        owner = adapters.DataHandler
        patched = [(owner, "__init__"), (owner, "enumerate_epochs")]
        patched += [(keras.Model, "_maybe_load_initial_counters_from_ckpt")]
        patched += [(sys.modules["tf_keras.src.utils.tf_utils"], "sync_to_numpy_or_python_type")]
        patched += [
            (each, "_peek_and_restore")
            for each in (adapters.GeneratorDataAdapter, adapters.KerasSequenceAdapter)
        ]
    for place, name in patched:
        monkeypatch.setattr(place, name, getattr(place, name))  # what is changed is put back
    if library == "keras":
        replay.install_keras3(owner)
    else:
        replay.install_keras2(keras.Model, owner)
    given: dict[str, Any] = {"validation_freq": freq, "epochs": 4, "verbose": 0}
    if kept == "some steps":
        given |= {"validation_steps": 1}

    def orders(resumes_at: int) -> list[list[float]]:
        """Return the order of each epoch, and of its validation, from one on that a restart goes on with."""
        chance, found = np.random.default_rng(5), []
        data = (
            tf.data.Dataset.range(24)
            .shuffle(24, seed=1)
            .map(lambda x: tf.reshape(tf.cast(x, "float32"), [1]))
        )
        if kept == "unknown":
            data = data.filter(lambda x: x[0] > -1)
        elif kept == "drawn in Python":
            data = tf.data.Dataset.from_generator(
                lambda: iter(chance.permutation(24).astype("float32").reshape(-1, 1)),
                output_signature=tf.TensorSpec([1]),
            )
        validation = data.skip(16).map(lambda x: (x, x)).batch(4)

        class Seen(keras.Model):  # type: ignore[misc, name-defined]
            def train_step(self, data: Any) -> Any:
                found.append([float(each[0]) for each in data[0]])
                return {"loss": 0.0}

            test_step = train_step

            def call(self, x: Any) -> Any:
                return x

        class Leaps(keras.callbacks.Callback):  # type: ignore[misc, name-defined]
            def on_train_begin(self, logs: Any = None) -> None:
                del logs
                course.leap(resumes_at, 0)
                if library == "keras" and resumes_at:
                    self.model._initial_epoch = resumes_at

        model = Seen()
        model.compile("sgd", "mse", run_eagerly=True)
        course = replay.Course(0)
        course.validation = replay.Validation(model, {"validation_data": validation, **given})
        with course:
            model.fit(
                data.take(16).map(lambda x: (x, x)).batch(4),
                validation_data=validation,
                callbacks=[Leaps()],
                **given,
            )
        return found

    alone, resumed = orders(0), orders(2)
    assert len(resumed) >= 8
    assert resumed == alone[-len(resumed) :]


@pytest.mark.parametrize("is_scaled", [False, True])
def test_a_rate_that_a_callback_has_set_stays_where_the_optimizer_is_built_later(is_scaled: bool) -> None:
    import keras

    def optimizer(rate: float) -> Any:
        adam = keras.optimizers.Adam(rate)
        return keras.optimizers.LossScaleOptimizer(adam) if is_scaled else adam

    name, weight = "optimizer.of_maker", keras.Variable(np.zeros(3, "float32"))
    trained, fresh = optimizer(0.5), optimizer(0.1)
    trained.apply([np.ones(3, "float32")], [weight])
    values = backup.collect({name: trained.variables}, 1)
    built = backup.assign_built({name: fresh.variables}, values, name)
    assert is_scaled or float(fresh.learning_rate) == 0.5, "a callback may compute the next rate from it"
    fresh.learning_rate.assign(0.25)
    fresh.build([weight])
    backup.assign({name: fresh.variables}, values, name, after=built)
    # The rate of one that scales its loss comes behind what is built later.
    assert float(fresh.learning_rate) == (0.5 if is_scaled else 0.25)
    now, then = (
        [each.numpy() for each in one.variables if each is not one.learning_rate] for one in (fresh, trained)
    )
    np.testing.assert_equal(now, then)


def test_of_the_variables_that_keras_does_not_list_those_with_one_value_of_all_replicas_are_saved() -> None:
    keras, tf = pytest.importorskip("keras"), pytest.importorskip("tensorflow")
    strategy = tf.distribute.MirroredStrategy(["/cpu:0"])
    on_read, aggregation = tf.VariableSynchronization.ON_READ, tf.VariableAggregation

    def variable(**given: Any) -> Any:
        return tf.Variable(1.0, trainable=False, **given)

    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        model.mirrored, model.summed = (
            variable(),
            variable(synchronization=on_read, aggregation=aggregation.SUM),
        )
        model.own = variable(synchronization=on_read)
        model.weight = model.layers[0].kernel.value
    model.outside = variable(synchronization=on_read)
    groups = backup.variables_of(model)
    names = ["mirrored", "outside", "summed"]
    assert [group for group in groups if "variables" in group] == [f"variables.0.{name}" for name in names]
    values = backup.collect(groups, 7)
    for name in names:
        getattr(model, name).assign(5.0)
        backup.assign(groups, values, f"variables.0.{name}")
        assert float(getattr(model, name).numpy()) == 1.0
