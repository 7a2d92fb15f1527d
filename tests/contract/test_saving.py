"""Saves as often as costs least, with real TensorFlow: two workers save at the same steps, and resume after a kill."""

from __future__ import annotations

import contextlib
import importlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.checkpoints import verify
from orchestrator.task import this_task
from orchestrator.task.keras import optimizers
from orchestrator.task.transparent import backup, checkpoint
from tests.contract.strategy_harness import with_row
from tests.contract.test_runtime_tensorflow import Gang, seeded

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(180)]

SCRIPTS = Path(__file__).parent / "scripts" / "saving"


def environment(**options: Any) -> dict[str, str]:
    told = json.dumps(with_row({"strategy": "multi_worker_mirrored", **options}))
    return {"ORCH_RUNTIME": told, "ORCH_FAILURE_EVERY_S": "1"}


@pytest.fixture
def gang() -> Iterator[Callable[..., Gang]]:
    with contextlib.ExitStack() as stack:

        def start(*args: Any, **kwargs: Any) -> Gang:
            run = Gang(*args, **kwargs)
            stack.callback(run.close)
            return run

        yield start


def last_line(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text.strip().splitlines()[-1])
    return found


def savings(run: Gang, index: int) -> list[dict[str, Any]]:
    found = [message["saving"] for message in run.heard[index] if "saving" in message]
    return [each for n, each in enumerate(found) if n == 0 or each != found[n - 1]]


def verified_step(directory: Path) -> int:
    return int((verify(str(directory))["checkpoint"] or {}).get("global_step") or 0)


def test_a_script_with_the_callback_resumes_within_an_epoch_on_both_workers(
    gang: Callable[..., Gang], tmp_path: Path
) -> None:
    """Failures are expected each second: it saves as often as 1 % of the time allows, at steps that both agree on."""
    first = gang(SCRIPTS / "callback.py", "0.03", directories=seeded(tmp_path, 1, 2)[1], env=environment())
    chief = tmp_path / "shared" / "gen-000001"
    first.wait_for(lambda: verified_step(chief) > 20, "a second save")
    first.close()

    answer, directories = seeded(tmp_path, 2, 2)
    assert answer["global_step"] > 20
    second = gang(SCRIPTS / "callback.py", directories=directories, env=environment())
    assert second.ended() == [0, 0], second.tasks[0].err
    assert second.steps()[0] == answer["global_step"]
    results = [last_line(task.out) for task in second.tasks]
    assert results[0] == results[1]
    assert results[0]["steps"] == 100
    assert len(results[0]["epochs"]) == 5
    told = [savings(first, index) for index in (0, 1)]
    known = min(len(told[0]), len(told[1]))  # one of them may have been killed before it could say its last
    steps = [[each["every_steps"] for each in one[:known]] for one in told]
    assert steps[0] == steps[1]
    assert told[0][0]["why"] in ("shortest", "share", "writing", "least")
    assert not list(directories[1].rglob("saving_temp")), "only the chief writes"


def test_a_model_of_other_shapes_than_the_checkpoint_ends_with_that_sentence(
    gang: Callable[..., Gang], tmp_path: Path
) -> None:
    env = environment(strategy="single", save_every_steps=3)
    script, before = SCRIPTS / "filters.py", {**env, "ORCH_SCRIPT": "with 8"}
    first = gang(script, "8", "killed", directories=seeded(tmp_path, 1, 1)[1], env=before)
    assert first.ended() == [9], first.tasks[0].err
    answer, directories = seeded(tmp_path, 2, 1)
    assert answer["global_step"] > 0
    second = gang(script, "16", directories=directories, env={**env, "ORCH_SCRIPT": "with 16"})
    assert second.ended() == [1]
    said = "the model has other shapes than the checkpoint (conv1: 3x3x1x16, was 8)"
    said += ": `orch up --again` begins from scratch"
    errors = [message["error"] for message in second.heard[0] if "error" in message]
    assert [(each["kind"], each["message"]) for each in errors] == [("other-shapes", said)] * 2
    assert not [message for message in second.heard[0] if "restored" in message], "the file is not blamed"
    assert "Traceback" not in second.tasks[0].err
    assert f"orch: {said}" in second.tasks[0].err


@pytest.mark.parametrize(
    "model",
    [
        ["keras"],
        ["tf_keras", "call", "legacy"],
        pytest.param(["tf_keras", "inner"], marks=pytest.mark.long),  # of Keras 3 there is a test below
        pytest.param(["keras", "call"], marks=pytest.mark.long),  # without it "keras" stays
        pytest.param(["tf_keras"], marks=pytest.mark.long),  # with legacy optimizers it stays
    ],
    ids=" ".join,
)
def test_optimizers_that_the_first_step_builds_are_restored(
    gang: Callable[..., Gang], tmp_path: Path, model: list[str]
) -> None:
    env = environment(strategy="single", save_every_steps=3)
    script = SCRIPTS / "gan.py"
    whole = gang(script, *model, directories=seeded(tmp_path / "whole", 1, 1)[1], env=env)
    first = gang(script, *model, "killed", directories=seeded(tmp_path, 1, 1)[1], env=env)
    assert first.ended() == [9], first.tasks[0].err
    second = gang(script, *model, directories=seeded(tmp_path, 2, 1)[1], env=env)
    assert second.ended() == whole.ended() == [0], second.tasks[0].err
    assert last_line(second.tasks[0].out) == last_line(whole.tasks[0].out)


@pytest.fixture
def keras(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return Keras 3 of this process, whose fits save every 9 steps. What `Checkpoint()` patches is put back."""
    found = pytest.importorskip("keras")
    trainer = importlib.import_module("keras.src.backend.tensorflow.trainer")
    adapters = "keras.src.trainers.data_adapters."
    for owner, name in (
        (trainer.TFEpochIterator, "__init__"),
        (trainer.TFEpochIterator, "_enumerate_iterator"),
        (importlib.import_module(f"{adapters}generator_data_adapter"), "peek_and_restore"),
        (importlib.import_module(f"{adapters}py_dataset_adapter").PyDatasetAdapter, "_standardize_batch"),
    ):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    monkeypatch.setattr(checkpoint, "_settings", {})
    monkeypatch.setattr(this_task, "options", {"save_every_steps": 9})
    monkeypatch.setattr(this_task, "stop_hooks", [])
    return found


class Killed(Exception):
    """The process is killed."""


def fitted(keras: Any, model: Any, *callbacks: Any, dies_at: int | None = None, **given: Any) -> Any:
    """Fit as a script does that has `Checkpoint()`; it dies where this epoch begins. Return the history."""

    class Dies(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            del logs
            if epoch == dies_at:
                raise Killed

    each = [checkpoint.Checkpoint(), *callbacks, Dies()]
    given |= {"callbacks": each, "epochs": 3, "verbose": 0}
    try:
        return checkpoint.fit(keras.Model.fit, model, "keras", given).history
    finally:
        checkpoint._settings["keras"].writer.wait()


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize("kind", ["arrays", "batches", "unknown length", "a step of its own"])
def test_an_epoch_that_ends_within_a_call_of_several_steps_goes_on_as_if_nothing_had_failed(
    keras: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Of ten steps, four a call: the third call makes two. The save is due then, or a step before the epoch's end."""
    import numpy as np
    import tensorflow as tf

    x = np.random.default_rng(5).normal(size=(40, 3)).astype("float32")
    y = x.sum(axis=1, keepdims=True)

    class Batches(keras.utils.PyDataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return 10

        def __getitem__(self, place: int) -> Any:
            return x[4 * place :][:4], y[4 * place :][:4]

    class Own(keras.Sequential):  # type: ignore[misc]
        def train_step(self, data: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self(data[0]) - data[1]) ** 2)
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"critic": loss}

    def trained(name: str, dies_at: int | None = None) -> Any:
        """Return what a process ends with that begins with the files of this directory."""
        monkeypatch.setenv("ORCH_CHECKPOINT_DIR", str(tmp_path / name))
        checkpoint._settings.clear()
        keras.utils.set_random_seed(3)
        is_own = kind == "a step of its own"
        model = (Own if is_own else keras.Sequential)([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", steps_per_execution=1 if is_own else 4)
        data: dict[str, Any] = {"x": x, "y": y, "batch_size": 4}
        if kind == "batches":
            data = {"x": Batches()}
        elif kind != "arrays":
            data = {"x": tf.data.Dataset.from_tensor_slices((x, y)).batch(4).filter(lambda *_: True)}
        history = fitted(keras, model, dies_at=dies_at, **data)
        variables = [each.numpy().tolist() for each in (*model.weights, *model.optimizer.variables)]
        return history, variables, checkpoint._settings["keras"].steps

    whole = trained("whole")
    with pytest.raises(Killed):
        trained("killed", dies_at=1)
    assert trained("killed") == whole
    assert {name: len(values) for name, values in whole[0].items()} == {
        "critic" if kind == "a step of its own" else "loss": 3
    }
    assert whole[2] == (36 if kind == "unknown length" else 30), "there Keras tells nobody how many were made"


def test_the_table_of_a_cross_validation_has_each_epoch_of_each_fold_once_after_a_restart(
    keras: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import numpy as np

    def table(name: str, dies_in: int | None = None) -> str:
        monkeypatch.setenv("ORCH_CHECKPOINT_DIR", str(tmp_path / name))
        checkpoint._settings.clear()
        place = tmp_path / f"{name}.csv"
        for fold in range(2):
            keras.utils.set_random_seed(3)
            model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
            model.compile("sgd", "mse")
            x = np.random.default_rng(fold).normal(size=(40, 3)).astype("float32")
            log = keras.callbacks.CSVLogger(place, append=True)
            dies_at = 2 if fold == dies_in else None
            fitted(keras, model, log, dies_at=dies_at, x=x, y=x[:, :1], batch_size=4)
        return place.read_text()

    whole = table("whole")
    with pytest.raises(Killed):
        table("killed", dies_in=1)
    assert table("killed") == whole
    assert [row.partition(",")[0] for row in whole.splitlines()] == ["epoch", *["0", "1", "2"] * 2]


@pytest.mark.long
def test_what_is_resumed_ends_as_what_was_never_interrupted(
    gang: Callable[..., Gang], tmp_path: Path
) -> None:
    env = environment(strategy="single", save_every_steps=7)
    whole = gang(SCRIPTS / "callback.py", directories=seeded(tmp_path / "whole", 1, 1)[1], env=env)
    first = gang(SCRIPTS / "callback.py", "0.02", directories=seeded(tmp_path, 1, 1)[1], env=env)
    chief = tmp_path / "shared" / "gen-000001"
    first.wait_for(lambda: verified_step(chief) > 21, "a save in the second epoch")
    first.close()
    answer, directories = seeded(tmp_path, 2, 1)
    assert answer["global_step"] % 7 == 0
    second = gang(SCRIPTS / "callback.py", directories=directories, env=env)
    assert second.ended() == whole.ended() == [0], second.tasks[0].err
    result, expected = last_line(second.tasks[0].out), last_line(whole.tasks[0].out)
    assert result["steps"] == expected["steps"] == 100
    assert result["epochs"] == pytest.approx(expected["epochs"], rel=1e-5)
    assert result["weights"] == pytest.approx(expected["weights"], rel=1e-5)
    assert verified_step(directories[0]) == 100, "the fit that has ended is saved, although no save was due"


@pytest.mark.long
def test_a_loop_of_two_workers_saves_together_through_a_kill(
    gang: Callable[..., Gang], tmp_path: Path
) -> None:
    env = environment(save_every_s=0.5)
    first = gang(SCRIPTS / "loop.py", "0.03", directories=seeded(tmp_path, 1, 2)[1], env=env)
    chief = tmp_path / "shared" / "gen-000001"
    first.wait_for(lambda: verified_step(chief) > 10, "a second save")
    first.close()
    answer, directories = seeded(tmp_path, 2, 2)
    second = gang(SCRIPTS / "loop.py", "0.01", directories=directories, env=env)
    assert second.ended() == [0, 0], second.tasks[0].err
    results = [last_line(task.out) for task in second.tasks]
    assert results[0]["saves"] == results[1]["saves"]
    assert results[0]["saves"][0] > answer["global_step"] > 10
    assert results[0]["weight"] == pytest.approx(1.0 - 0.12, abs=1e-4)
    assert results[0]["seen"] == 240.0


def test_what_a_step_updates_and_keras_does_not_list_goes_on_after_a_restart(
    keras: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Variables of TensorFlow, and an optimizer that a model within the model was compiled with."""
    import numpy as np
    import tensorflow as tf

    class Queued(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net, self.critic = (
                keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]) for _ in range(2)
            )
            self.critic.compile(keras.optimizers.Adam(0.1))
            self.seen = self.again = tf.Variable(0.0, trainable=False)
            self.queues = {"old": tf.Variable(tf.zeros([4, 1])), "words": tf.Variable(["a", "b"])}
            self.net.layers[0].limits = [tf.Variable([np.inf, np.inf]), tf.Variable(True)]

        def call(self, x: Any) -> Any:
            return self.net(x)

        def train_step(self, data: Any) -> Any:
            with tf.GradientTape(persistent=True) as tape:
                out = self.net(data)
                loss = tf.reduce_mean((out - data[:, :1]) ** 2 + 0.1 * (out - self.queues["old"]) ** 2)
                judged = tf.reduce_mean((self.critic(data) - self.seen) ** 2)
            for optimizer, model, value in (
                (self.optimizer, self.net, loss),
                (self.critic.optimizer, self.critic, judged),
            ):
                weights = model.trainable_variables
                optimizer.apply_gradients(zip(tape.gradient(value, weights), weights, strict=True))
            self.queues["old"].assign(out)
            self.seen.assign_add(0.01)
            least = self.net.layers[0].limits[0]
            least.assign(tf.minimum(least, [loss, np.inf]))
            return {"loss": loss}

    def trained(name: str, dies_at: int | None = None) -> Any:
        """Return what a process ends with that begins with the files of this directory."""
        monkeypatch.setenv("ORCH_CHECKPOINT_DIR", str(tmp_path / name))
        checkpoint._settings.clear()
        keras.utils.set_random_seed(3)
        model = Queued()
        model.compile(keras.optimizers.Adam(0.1))
        x = np.random.default_rng(5).normal(size=(40, 3)).astype("float32")
        fitted(keras, model, dies_at=dies_at, x=x, batch_size=4)
        groups = backup.variables_of(model)
        del groups["metrics"]
        return {group: [each.numpy().tolist() for each in variables] for group, variables in groups.items()}

    whole = trained("whole")
    others = {group: len(values) for group, values in whole.items() if group not in ("model", "optimizer")}
    critic = next(group for group in others if group.startswith(optimizers.INNER))
    (limits,) = (group for group in others if group.endswith(".limits"))
    assert others == {critic: 6, "variables.0.again": 1, "variables.0.queues": 1, limits: 2}
    assert whole["variables.0.again"] == [pytest.approx(0.3)]
    with pytest.raises(Killed):
        trained("killed", dies_at=1)
    assert trained("killed") == whole


def test_a_backup_that_lacks_what_keras_does_not_list_or_has_more_of_it_is_restored(
    keras: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One of the version before, and one of which the variable was made in an evaluation, say."""
    import tensorflow as tf

    x = tf.ones((40, 3))
    monkeypatch.setenv("ORCH_CHECKPOINT_DIR", str(tmp_path))

    def trained(dies_at: int | None, *names: str) -> list[float]:
        checkpoint._settings.clear()
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        for number, name in enumerate(names):
            setattr(model, name, tf.Variable(float(number)))
        model.compile("sgd", "mse")
        fitted(keras, model, dies_at=dies_at, x=x, y=x[:, :1], batch_size=4)
        return [float(getattr(model, name).numpy()) for name in names]

    with pytest.raises(Killed):
        trained(1, "first")
    with pytest.raises(Killed):
        trained(2, "second", "third")
    assert trained(None, "third") == [1.0]
    told = capsys.readouterr().err
    assert "the script's variables.0.first is another one than the checkpoint's: it begins anew" in told
    assert "in epoch 2 of 3, after 8 batches of it" in told


def test_the_steps_of_all_fits_are_counted_on_as_they_are_saved_and_told(
    keras: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import numpy as np

    x = np.random.default_rng(5).normal(size=(40, 3)).astype("float32")
    progress: Any = SimpleNamespace(count_steps=None)
    monkeypatch.setattr(this_task, "progress", progress)
    monkeypatch.setenv("ORCH_CHECKPOINT_DIR", str(tmp_path))

    def trained(rates: tuple[float, ...] = (0.1, 0.01), dies_in: float | None = None) -> list[int]:
        """Return the steps that are told when epochs end: of a warm-up without a backup, and a fit for each rate."""
        told: list[int] = []
        end = keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: told.append(progress.count_steps()))
        checkpoint._settings.clear()
        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        model.fit(x, x[:, :1], batch_size=10, verbose=0)
        for rate in rates:
            if rate != rates[0]:
                model.compile(keras.optimizers.SGD(rate), "mse")
            dies_at = 2 if rate == dies_in else None
            fitted(keras, model, end, dies_at=dies_at, x=x, y=x[:, :1], batch_size=4)
        return told

    def saved() -> dict[int, int]:
        return {fit: position.steps for fit, position in backup.positions(str(tmp_path)).items()}

    with pytest.raises(Killed):
        trained(dies_in=0.01)
    assert saved() == {0: 34, 1: 52}
    assert trained() == [54, 64]
    assert saved() == {0: 34, 1: 64}
    assert progress.count_steps is None, "of a fit without the callback, the steps are its optimizer's"


def test_steps_go_on_behind_those_that_the_version_before_counted_in_an_earlier_fit(
    keras: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counted each fit from 0, and the script skips the one that has ended."""
    import tensorflow as tf

    x = tf.ones((40, 3))
    monkeypatch.setenv("ORCH_CHECKPOINT_DIR", str(tmp_path))

    def trained(*units: int, dies_in: int | None = None) -> None:
        checkpoint._settings.clear()
        for count in units:
            keras.utils.set_random_seed(3)
            model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(count), keras.layers.Dense(1)])
            model.compile("sgd", "mse")
            fitted(keras, model, dies_at=2 if count == dies_in else None, x=x, y=x[:, :1], batch_size=4)

    with pytest.raises(Killed):
        trained(1, 2, dies_in=2)
    place = backup.folder(str(tmp_path), 0)
    values, position = backup.read(place) or ({}, backup.Position(0, 0))
    position.steps = values[backup.STEPS] = 1000
    backup.write(place, values, position)
    trained(2)
    assert backup.positions(str(tmp_path))[1].steps > 1000


def test_a_script_that_is_told_of_fewer_replicas_sets_its_rate_by_itself(
    keras: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tensorflow as tf

    monkeypatch.setattr(this_task, "options", {"on_shrink": "scale_lr"})
    monkeypatch.setenv("ORCH_REPLICAS_PLANNED", "2")
    monkeypatch.setenv("ORCH_CHECKPOINT_DIR", str(tmp_path))
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.05), "mse")
    assert len(fitted(keras, model, x=tf.ones((8, 3)), y=tf.ones((8, 1)))["loss"]) == 3
    assert backup.positions(str(tmp_path))[0].scale == 1.0


@pytest.mark.long
@pytest.mark.parametrize("transparent", [False, True])
def test_a_fit_whose_batch_and_rate_follow_the_replicas_goes_on_with_fewer(
    gang: Callable[..., Gang], tmp_path: Path, transparent: bool
) -> None:
    """It has 48 batches for two replicas, and 96 for one; the rate of the checkpoint had been lowered by a callback."""
    options = {"transparent": True, "replicas_on_cpu": 1} if transparent else {"on_shrink": "scale_lr"}
    env, script = environment(save_every_steps=5, **options), SCRIPTS / "scales.py"
    args = ("transparent",) if transparent else ()
    first = gang(script, "0.02", *args, directories=seeded(tmp_path, 1, 2)[1], env=env)
    chief = tmp_path / "shared" / "gen-000001"
    first.wait_for(lambda: verified_step(chief) > 60, "a save in the second epoch")
    first.close()
    answer, directories = seeded(tmp_path, 2, 1)
    second = gang(script, *args, directories=directories, env=env)
    assert second.ended() == [0], second.tasks[0].err
    assert answer["global_step"] in second.steps()[:2]
    told = " ".join(message["say"]["message"] for message in second.heard[0] if "say" in message)
    epoch, batch = divmod(answer["global_step"], 48)
    assert f"fit 1 goes on from its backup, in epoch {epoch + 1} of 3, after {2 * batch} batches" in told
    assert "there were 2 replicas, and now 1: the learning rate of the checkpoint is multiplied" in told
    result = last_line(second.tasks[0].out)
    assert result["epochs"] == 3
    assert result["steps"] == answer["global_step"] + 96 * (3 - epoch) - 2 * batch
    assert result["rate"] == pytest.approx(0.01 * 0.9**3)
    assert backup.positions(str(directories[0])).keys() == {0}
