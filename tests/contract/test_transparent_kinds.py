"""What `transparent: true` finds a value of a step to be, by real graphs of TensorFlow."""

# ruff: noqa: ARG005 - each value is made of the same three

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.task.transparent.batches import divided
from orchestrator.task.transparent.kinds import each
from orchestrator.task.transparent.rules import Kinds
from orchestrator.task.transparent.step import Step, line_of_script

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(300)]

VALUES: dict[str, tuple[str, Callable[[Any, Any, Any], Any]]] = {
    "a weight": ("same", lambda tf, x, w: tf.reduce_sum(w * w)),
    "a constant shape": ("same", lambda tf, x, w: tf.cast(tf.shape(x)[1], tf.float32)),
    "the number of examples": ("count", lambda tf, x, w: tf.cast(tf.shape(x)[0], tf.float32)),
    "the number of values": ("count", lambda tf, x, w: tf.size(x)),
    "a layer": ("each", lambda tf, x, w: tf.nn.relu(tf.matmul(x, w))),
    "a mean over features": ("each", lambda tf, x, w: tf.reduce_mean(x, axis=-1)),
    "noise for each example": ("each", lambda tf, x, w: tf.random.normal(tf.shape(x))),
    "attention within an example": (
        "each",
        lambda tf, x, w: tf.matmul(x[:, :, None], x[:, None, :]),
    ),
    "normalized by the batch": (
        "each",
        lambda tf, x, w: (x - tf.reduce_mean(x, 0)) / tf.math.reduce_std(x, 0),
    ),
    "a sum": ("sum", lambda tf, x, w: tf.reduce_sum(tf.matmul(x, w))),
    "half the squares": ("sum", lambda tf, x, w: tf.nn.l2_loss(x)),
    "a matrix of all examples": ("sum", lambda tf, x, w: tf.matmul(x, x, transpose_a=True)),
    "a mean": ("mean", lambda tf, x, w: tf.reduce_mean(tf.matmul(x, w))),
    "a mean of sums": ("mean", lambda tf, x, w: tf.reduce_mean(tf.reduce_sum(x, axis=1)) * 3.0 / 2.0),
    "a mean for each feature": ("mean", lambda tf, x, w: tf.reduce_mean(x, axis=0)),
    "a mean by hand": ("mean", lambda tf, x, w: tf.reduce_sum(x) / tf.cast(tf.shape(x)[0], tf.float32)),
    "divided before": ("mean", lambda tf, x, w: tf.reduce_sum(x / tf.cast(tf.shape(x)[0], tf.float32))),
    "times one by the count": (
        "mean",
        lambda tf, x, w: (1.0 / tf.cast(tf.shape(x)[0], tf.float32)) * tf.reduce_sum(x),
    ),
    "a mean over the time first": ("mean", lambda tf, x, w: tf.reduce_mean(tf.transpose(x))),
    "over what a mask leaves": (
        "mean",
        lambda tf, x, w: tf.reduce_sum(x * w[0]) / tf.maximum(tf.reduce_sum(tf.cast(x > 0, tf.float32)), 1.0),
    ),
    "a mean and a regularizer": ("mixed", lambda tf, x, w: tf.reduce_mean(x) + tf.reduce_sum(w * w)),
    "a sum and a mean": ("mixed", lambda tf, x, w: 2.0 * (tf.reduce_sum(x) - tf.reduce_mean(x))),
    "several in a list": (
        "mixed",
        lambda tf, x, w: tf.reduce_sum([tf.reduce_mean(x), 1.0, tf.reduce_sum(x)]),
    ),
    "a root of a mean": ("other", lambda tf, x, w: tf.sqrt(tf.reduce_mean(x))),
    "a mean squared": ("other", lambda tf, x, w: tf.square(tf.reduce_mean(x))),
    "the largest": ("other", lambda tf, x, w: tf.reduce_max(x)),
    "a quotient that learns": (
        "other",
        lambda tf, x, w: tf.reduce_sum(x * w[0]) / tf.reduce_sum(tf.abs(x * w[0])),
    ),
    "kept above a bound": ("divisor", lambda tf, x, w: tf.maximum(tf.reduce_sum(x), 1.0)),
    "examples compared": ("cross", lambda tf, x, w: tf.reduce_mean(tf.matmul(x, x, transpose_b=True))),
    "examples subtracted": ("cross", lambda tf, x, w: tf.reduce_sum(x[:, None, :] - x[None])),
    "triplets of a batch": ("cross", lambda tf, x, w: tf.reduce_mean(tf.split(x, 3)[1])),
    "parts of unequal size": ("cross", lambda tf, x, w: tf.reduce_mean(tf.split(x, [2, -1], axis=0)[0])),
    "parts of each example": ("mean", lambda tf, x, w: tf.reduce_mean(tf.split(x, 3, axis=-1)[1])),
    "parts of what was put together": (
        "mean",
        lambda tf, x, w: tf.reduce_mean(tf.nn.relu(tf.split(tf.matmul(tf.concat([x, -x], 0), w), 2)[0])),
    ),
    "compared by einsum": ("cross", lambda tf, x, w: tf.reduce_mean(tf.einsum("ik,jk->ij", x, x))),
}


@pytest.fixture(scope="module")
def kinds() -> dict[str, str]:
    """All values in one graph: what each is found to be."""
    import tensorflow as tf

    found: dict[str, str] = {}
    weight = tf.Variable(tf.ones([6, 6]))

    def step(x: Any) -> Any:
        known = Kinds()
        known.set(x, each())
        for name, (_, value) in VALUES.items():
            found[name] = known.kind_of(tf.convert_to_tensor(value(tf, x, weight))).name

    tf.function(step, autograph=False).get_concrete_function(tf.TensorSpec([None, 6]))
    return found


@pytest.mark.parametrize("name", VALUES)
def test_each_value(kinds: dict[str, str], name: str) -> None:
    assert kinds[name] == VALUES[name][0]


def test_half_of_a_mean_and_a_penalty_is_half_of_each() -> None:
    import tensorflow as tf

    weight = tf.Variable(tf.ones([6, 6]))
    names: list[str] = []

    def step(x: Any) -> list[Any]:
        known = Kinds()
        known.set(x, each())
        both = tf.reduce_mean(x) - tf.reduce_sum(weight * weight)
        whole: Any = SimpleNamespace(kinds=known)
        terms = [term for total in (0.5 * both, both * 0.5) for term in Step.terms(whole, total)]
        names.extend(kind.name for _, _, kind in terms)
        return [factor for _, factor, _ in terms]

    factors = tf.function(step, autograph=False)(tf.ones([4, 6]))
    found = sorted(zip(names, map(float, factors), strict=True))
    assert found == [("mean", 0.5)] * 2 + [("same", -0.5)] * 2


def test_what_tensorflow_is_given_of_a_scripts_array_is_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes the memory of an array for a buffer, and may write its results there."""
    import numpy as np
    import tensorflow as tf

    def on_each_replica(part: Callable[[Any], Any]) -> list[Any]:
        return [part(SimpleNamespace(replica_id_in_sync_group=replica)) for replica in range(2)]

    monkeypatch.setattr(tf, "convert_to_tensor", lambda value: value)
    strategy = SimpleNamespace(
        num_replicas_in_sync=2, experimental_distribute_values_from_function=on_each_replica
    )
    array = np.arange(10.0).reshape(5, 2)
    first, second = divided({"x": array}, strategy)["x"]
    assert (first.tolist(), second.tolist()) == (array[:2].tolist(), array[2:].tolist())
    assert not np.shares_memory(first, array)
    assert not np.shares_memory(second, array)


def test_the_line_of_a_tensor_is_that_of_the_script_that_made_what_it_is_made_of(tmp_path: Path) -> None:
    import tensorflow as tf

    (tmp_path / "train.py").write_text("def loss(tf, x):\n    return tf.sqrt(x)\n")
    space: dict[str, Any] = {}
    exec(compile((tmp_path / "train.py").read_text(), str(tmp_path / "train.py"), "exec"), space)
    with tf.Graph().as_default():
        total = tf.reduce_sum(space["loss"](tf, tf.constant([4.0]))) * 2.0
    assert line_of_script(os.path.realpath(tmp_path), total) == "train.py:2: return tf.sqrt(x)"
    assert line_of_script(str(tmp_path / "elsewhere"), total) == ""
