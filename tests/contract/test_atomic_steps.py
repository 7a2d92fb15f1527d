"""A step that fails half-way, with real TensorFlow in one process: it counts for nothing, or is not handed over.

The all-reduce is that of a group of one. `fails` stands for a peer's death or a full memory: it fails the operation of
which it is the input, after all others that wait for nothing have had time to run.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.task.transparent import atomic as atomics
from orchestrator.task.transparent import replay, rescue
from orchestrator.task.transparent.atomic import Atomic, NotAtomic

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(180)]

_group = itertools.count(1)


class Model:
    """Two weights, and what a step writes before and after its all-reduce."""

    def __init__(self) -> None:
        import tensorflow as tf

        self.failing = ""
        self.first, self.second, self.speed = (tf.Variable([0.0, 0.0]) for _ in range(3))
        self.moving, self.counter = tf.Variable(0.0), tf.Variable(0)
        self.trainable_variables = [self.first, self.second]

    def reduced(self, value: Any) -> Any:
        """Return the sum over the group of one."""
        import tensorflow as tf

        key = next(_group)
        return tf.raw_ops.CollectiveReduceV2(
            input=value, group_size=1, group_key=key, instance_key=key, merge_op="Add", final_op="Id",
            ordering_token=[],
        )  # fmt: skip

    def fails(self, value: Any, where: str) -> Any:
        """Return the value, or fail if it is to fail there."""
        import tensorflow as tf

        def fail(value: Any) -> Any:
            if self.failing == where:
                time.sleep(0.1)
                raise ConnectionError(where)
            return value

        failed = tf.numpy_function(fail, [value], value.dtype)
        failed.set_shape(value.shape)
        return failed

    def step(self, x: Any) -> Any:
        """Train."""
        self.moving.assign_add(1.0)
        gradient = self.reduced(self.fails(x, "the all-reduce"))
        self.first.assign_add(gradient)
        self.second.assign_add(self.fails(gradient, "an update"))
        self.counter.assign_add(1)
        return gradient


def traced(
    model: Model, step: Callable[[Any], Any], atomic: Atomic | None = None
) -> tuple[Atomic, Callable[[], Any]]:
    """Return the atomic steps, and a function that makes one."""
    import tensorflow as tf

    atomic = atomic or Atomic(model, model.counter)
    whole = tf.function(rescue._whole(atomic, step))
    return atomic, lambda: whole(tf.constant([1.0, 1.0]))


@pytest.fixture(scope="module")
def trained() -> tuple[Model, Atomic, Callable[[], Any]]:
    model = Model()
    atomic, train = traced(model, model.step)
    assert train().numpy().tolist() == [1.0, 1.0]
    return model, atomic, train


def test_a_step_whose_all_reduce_fails_has_done_nothing(
    trained: tuple[Model, Atomic, Callable[[], Any]],
) -> None:
    model, atomic, train = trained
    train()
    done, checksum = atomic.steps(), atomic.checksum()
    before = [atomic.value(each) for each in (model.moving, model.first, model.counter)]
    model.failing = "the all-reduce"
    with pytest.raises(Exception, match="the all-reduce"):
        train()
    assert model.moving.numpy() == before[0] + 1.0, "it was written early: else this shows nothing"
    assert model.counter.numpy() == before[2]
    assert atomic.value(model.moving) == before[0]
    assert (atomic.steps(), atomic.counted(), atomic.checksum()) == (done, done, checksum)
    with pytest.raises(NotAtomic, match="the next step began"):
        atomic.check_put_back()
    atomic.put_back()
    atomic.check_put_back()
    assert model.moving.numpy() == before[0]
    model.failing = ""
    train()
    assert (atomic.steps(), atomic.value(model.moving)) == (done + 1, before[0] + 1.0)
    assert atomic.checksum() != checksum


def test_what_was_changed_between_two_steps_is_held_too(
    trained: tuple[Model, Atomic, Callable[[], Any]],
) -> None:
    """An epoch's end takes the mean of moving averages, say, which a step writes before its all-reduce."""
    model, atomic, train = trained
    model.moving.assign(40.0)
    assert atomic.value(model.moving) != 40.0
    atomic.keep_changes()
    model.failing = "the all-reduce"
    with pytest.raises(Exception, match="the all-reduce"):
        train()
    model.failing = ""
    assert (float(model.moving), float(atomic.value(model.moving))) == (41.0, 40.0)
    atomic.put_back()
    atomic.check_put_back()
    assert float(model.moving) == 40.0


def test_where_its_data_ends_a_step_adds_what_waits_for_nothing(
    trained: tuple[Model, Atomic, Callable[[], Any]],
) -> None:
    """One process fails in such a step when `iterations` is counted already."""
    import tensorflow as tf

    model, atomic, _ = trained
    before = int(model.counter.numpy())

    def ended(_: Any) -> None:
        raise tf.errors.OutOfRangeError(None, None, "End of sequence")

    for _ in range(2):
        with pytest.raises(tf.errors.OutOfRangeError):
            atomic.ending(ended)(None)
    assert int(model.counter.numpy()) == before + 1, "once in an epoch"
    assert int(atomic.value(model.counter)) == before, "a restart within the epoch comes to its end too"
    atomic.is_over = False
    assert int(atomic.value(model.counter)) == before + 1


def test_a_restart_of_tf_keras_can_trace_what_also_ends_data(
    trained: tuple[Model, Atomic, Callable[[], Any]],
) -> None:
    import tensorflow as tf

    _, atomic, _ = trained
    steps = tf.function(lambda iterator: next(iterator))
    numbers = iter(tf.data.Dataset.range(3))
    model = SimpleNamespace(train_function=atomic.ending(steps))
    assert replay.is_traceable(model)
    model.train_function.get_concrete_function(numbers)
    assert int(model.train_function(numbers)) == 0, "tracing has read nothing"
    assert not replay.is_traceable(SimpleNamespace(train_function=atomic.ending(next))), "run_eagerly"


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_steps_are_traced_before_an_epoch_begins_or_if_that_fails_once_it_has_begun(library: str) -> None:
    """A callback sets what the step reads. What a trace that failed has left of its graph is not used."""
    import tensorflow as tf

    keras: Any = pytest.importorskip(library)
    course, data = replay.Course(0), tf.data.Dataset.from_tensors(tf.ones([1, 3]))
    course.keep_handler(SimpleNamespace(_dataset=data))
    ends = []
    for factor in (None, 2.0):
        model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1, use_bias=False)])
        model.compile("adam")

        def train_step(batch: Any, model: Any = model) -> dict[str, Any]:
            model.optimizer.apply_gradients([(tf.ones([3, 1]), model.trainable_variables[0])])
            return {"sum": tf.reduce_sum(batch) * model.factor}

        model.train_step = train_step
        if factor is not None:
            model.factor = factor
        model.make_train_function()
        assert course.trace(model) is (factor is not None)
        model.factor = 2.0
        made = model.optimizer.variables
        for variable in made() if callable(made) else made:
            variable.assign(tf.cast(tf.fill(variable.shape, 0.5), variable.dtype))  # as a restore does
        model.trainable_variables[0].assign(tf.ones([3, 1]))
        ends.append(float(model.train_function(iter(data))["sum"]))
        ends.append(float(model.trainable_variables[0].numpy()[0, 0]))
    assert ends[:2] == ends[2:]
    assert ends[0] == 6.0


def test_the_weights_of_a_step_that_failed_between_its_updates_are_those_of_no_step(
    trained: tuple[Model, Atomic, Callable[[], Any]],
) -> None:
    model, _, _ = trained
    atomic, train = traced(model, model.step)
    train()
    assert atomic.steps() == 1
    model.failing = "an update"
    with pytest.raises(Exception, match="an update"):
        train()
    model.failing = ""
    with pytest.raises(NotAtomic, match="between its updates"):
        atomic.steps()


def test_what_a_step_updates_is_handed_over_only_if_it_is_finite() -> None:
    import tensorflow as tf

    model = Model()
    atomic, train = traced(model, model.step)
    train()
    mask = tf.Variable([float("-inf"), 0.0], trainable=False)
    atomic.check_written(mask, mask.numpy())  # no step writes it
    atomic.check_written(model.second, model.second.numpy())
    atomic.check_written(model.moving, model.moving.numpy() * float("inf"))  # one number, as the best loss
    for variable, odd in (
        (model.second, float("inf")),
        (model.second, float("nan")),
        (model.moving, float("nan")),
    ):
        with pytest.raises(NotAtomic, match="what a step updates is NaN or infinite"):
            atomic.check_written(variable, variable.numpy() * odd)


def test_the_checksum_is_of_all_weights(trained: tuple[Model, Atomic, Callable[[], Any]]) -> None:
    model, atomic, _ = trained
    seen = {atomic.checksum()}
    for weight in model.trainable_variables:
        weight.assign_add([0.0, 1.0])
        seen.add(atomic.checksum())
    assert len(seen) == 3


def within_a_condition(model: Model, x: Any) -> Any:
    """Train where there is something to learn."""
    import tensorflow as tf

    gradient = tf.cond(tf.reduce_sum(x) > 0.0, lambda: model.reduced(x), lambda: x)
    model.first.assign_add(gradient)
    model.counter.assign_add(1)
    return model.reduced(gradient)


def with_two_optimizers(model: Model, x: Any) -> Any:
    """Train the second weight with what became of the first."""
    model.first.assign_add(model.reduced(x))
    model.second.assign_add(model.reduced(model.first * x))
    model.counter.assign_add(1)
    return x


def alone(model: Model, x: Any) -> Any:
    """Train without the others, and reduce the loss only."""
    model.first.assign_add(x)
    model.counter.assign_add(1)
    return model.reduced(x)


def uncounted(model: Model, x: Any) -> Any:
    """Train, and have the script count."""
    model.first.assign_add(model.reduced(x))
    return x


@pytest.mark.parametrize(
    ("step", "why"),
    [
        (within_a_condition, "an all-reduce within a condition or a loop"),
        (with_two_optimizers, "8 bytes are written before the last all-reduce"),
        (alone, "no weight is updated after an all-reduce"),
        (uncounted, "the step does not count itself"),
    ],
)
def test_a_step_that_cannot_be_made_atomic_trains_as_it_was_and_it_is_known_why(
    monkeypatch: pytest.MonkeyPatch, step: Callable[[Model, Any], Any], why: str
) -> None:
    monkeypatch.setattr(atomics, "COPIES_MAX_BYTES", 4)
    model = Model()
    atomic, train = traced(model, functools.partial(step, model))
    train()
    assert model.first.numpy().tolist() == [1.0, 1.0]
    with pytest.raises(NotAtomic, match=why):
        atomic.steps()


def test_steps_of_which_one_trace_is_refused_stay_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atomics, "COPIES_MAX_BYTES", 4)
    model = Model()
    atomic, train = traced(model, model.step)
    train()
    assert atomic.steps() == 1
    for step in (functools.partial(with_two_optimizers, model), model.step):
        traced(model, step, atomic)[1]()
        assert "8 bytes" in (atomic.refusal or "")


def test_a_step_of_two_replicas_of_one_worker_is_atomic(tmp_path: Path) -> None:
    """One of them fails before the all-reduce: then neither has made the step."""
    script = Path(__file__).parent / "scripts/transparent/two_replicas.py"
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, str(script)], env=env, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["atomic"] == found["plain"], "nothing is computed in another way"
    assert (found["refusal"], found["steps"], found["failed"], found["steps after"]) == (None, 3, True, 3)
    early = [found[name]["moving"] for name in ("atomic", "after", "put back")]
    assert early == [[[3.0], [6.0]], [[4.0], [8.0]], [[3.0], [6.0]]], "each replica's own is put back"
    assert found["put back"] == found["atomic"]
    assert "check" not in found
    said = "a step tells all what each had counted before it, also one that fails then"
    assert found["told"] == [[[2.0], [4.0]], [[3.0], [6.0]]], said
