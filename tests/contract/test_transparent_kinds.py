"""What `transparent: true` finds a value of a step to be, by real graphs of TensorFlow."""

# ruff: noqa: ARG005 - each value is made of the same three

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.task.transparent import figures
from orchestrator.task.transparent import step as steps
from orchestrator.task.transparent.batches import divided
from orchestrator.task.transparent.kinds import each
from orchestrator.task.transparent.rules import Kinds
from orchestrator.task.transparent.step import Step, line_of_script
from orchestrator.task.transparent.whole import NotOfTheBatch

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
    "a sum": ("sum", lambda tf, x, w: tf.reduce_sum(tf.matmul(x, w))),
    "half the squares": ("sum", lambda tf, x, w: tf.nn.l2_loss(x)),
    "the variance around a weight": ("mean", lambda tf, x, w: tf.reduce_mean(tf.square(x - w[0]), 0)),
    "pairs within an example": ("each", lambda tf, x, w: x[:, :, None] - x[:, None]),
    "each example's rank": ("each", lambda tf, x, w: tf.argsort(tf.argsort(x, axis=1), axis=1)),
    "a matrix of all examples": ("sum", lambda tf, x, w: tf.matmul(x, x, transpose_a=True)),
    "a mean": ("mean", lambda tf, x, w: tf.reduce_mean(tf.matmul(x, w))),
    "a mean of sums": ("mean", lambda tf, x, w: tf.reduce_mean(tf.reduce_sum(x, axis=1)) * 3.0 / 2.0),
    "a mean for each feature": ("mean", lambda tf, x, w: tf.reduce_mean(x, axis=0)),
    "a mean by hand": ("mean", lambda tf, x, w: tf.reduce_sum(x) / tf.cast(tf.shape(x)[0], tf.float32)),
    "a layer over words": ("each", lambda tf, x, w: tf.tensordot(tf.nn.relu(x[:, None] * w[None]), w, 1)),
    "a mean over the time first": ("mean", lambda tf, x, w: tf.reduce_mean(tf.transpose(x))),
    "a mean and a regularizer": ("mixed", lambda tf, x, w: tf.reduce_mean(x) + tf.reduce_sum(w * w)),
    "a sum and a mean": ("mixed", lambda tf, x, w: 2.0 * (tf.reduce_sum(x) - tf.reduce_mean(x))),
    "several in a list": (
        "mixed",
        lambda tf, x, w: tf.reduce_sum([tf.reduce_mean(x), 1.0, tf.reduce_sum(x)]),
    ),
    "parts of each example": ("mean", lambda tf, x, w: tf.reduce_mean(tf.split(x, 3, axis=-1)[1])),
    "parts of what was put together": (
        "mean",
        lambda tf, x, w: tf.reduce_mean(tf.nn.relu(tf.split(tf.matmul(tf.concat([x, -x], 0), w), 2)[0])),
    ),
    "along the features": (
        "each",
        lambda tf, x, w: tf.cumsum(
            tf.reverse(tf.sort(tf.nn.softmax(tf.roll(x[:, ::-1], 1, axis=1))), [1]), axis=1
        ),
    ),
    "a column": ("each", lambda tf, x, w: x[..., 2]),
    "flattened": ("mean", lambda tf, x, w: tf.reduce_mean(tf.reshape(x, [-1]) * tf.reshape(x, [-1]))),
    "a cross-entropy of each": (
        "each",
        lambda tf, x, w: tf.nn.sparse_softmax_cross_entropy_with_logits(
            tf.argmax(x, axis=1), tf.matmul(x, w)
        ),
    ),
    "a convolution": ("each", lambda tf, x, w: tf.nn.conv1d(x[..., None], w[:3, None, :2], 1, "SAME")),
    "an embedding": ("each", lambda tf, x, w: tf.gather(w, tf.cast(tf.abs(x), tf.int32) % 6)),
    "mixed with a drawn partner": (
        "mean",
        lambda tf, x, w: tf.reduce_mean(x + tf.gather(x, tf.random.shuffle(tf.range(tf.shape(x)[0])))),
    ),
    "a choice for each, by place": (
        "other",
        lambda tf, x, w: tf.gather_nd(
            x, tf.stack([tf.range(tf.shape(x)[0]), tf.cast(tf.argmax(x, 1), tf.int32)], 1)
        ),
    ),
    "chosen along each": ("each", lambda tf, x, w: tf.gather(x, tf.argsort(x), axis=1, batch_dims=1)),
    "logits": (
        "mean",
        lambda tf, x, w: tf.reduce_mean(
            tf.nn.softmax_cross_entropy_with_logits(x, x)
            + tf.nn.sigmoid_cross_entropy_with_logits(x, x)[:, 0]
        ),
    ),
    "repeated for each": (
        "each",
        lambda tf, x, w: tf.concat([tf.tile(w[:1], [tf.shape(x)[0], 1]), tf.tile(x, [1, 2])], 1),
    ),
    "slices of each": ("each", lambda tf, x, w: tf.slice(x, [0, 1], [tf.shape(x)[0], 3]) + x[:, 2:5]),
    "rows of all words and back": (
        "each",
        lambda tf, x, w: tf.reshape(tf.matmul(tf.reshape(x, [-1, 3]), w[:3, :4]), [-1, 2, 4]),
    ),
    "a dilated convolution": (
        "each",
        lambda tf, x, w: tf.nn.convolution(x[..., None], w[:3, None, :2], dilations=2, padding="SAME"),
    ),
    "a gradient of each": ("each", lambda tf, x, w: tf.gradients(tf.reduce_mean(tf.nn.relu(x @ w), 1), x)[0]),
    "matrices of each": (
        "each",
        lambda tf, x, w: tf.linalg.inv(
            tf.linalg.diag(x) + tf.linalg.band_part(x[:, None] * x[..., None], 0, 1)
        ),
    ),
    "one of two by chance": (
        "each",
        lambda tf, x, w: tf.cond(tf.random.uniform([]) > 0.5, lambda: x, lambda: x @ w),
    ),
    "a spectrum of each": ("each", lambda tf, x, w: tf.abs(tf.signal.stft(tf.tile(x, [1, 9]), 16, 8))),
    "a loop over the features": ("each", lambda tf, x, w: recurrent(tf, x, w)),
    "a constant of a sum": ("mixed", lambda tf, x, w: tf.reduce_mean(x) + tf.stop_gradient(tf.reduce_sum(x))),
}


def recurrent(tf: Any, x: Any, w: Any) -> Any:
    """Go over the second axis, as recurrent layers do: the examples lie along the second one within."""
    inputs = tf.TensorArray(tf.float32, 6).unstack(tf.transpose(x)[..., None] * tf.ones([1, 1, 6]))

    def turn(place: Any, state: Any, found: Any) -> Any:
        state = tf.tanh(inputs.read(place) + tf.matmul(state, w))
        return place + 1, state, found.write(place, state)

    begin = (0, tf.zeros([tf.shape(x)[0], 6]), tf.TensorArray(tf.float32, 6))
    return tf.transpose(tf.while_loop(lambda place, *_: place < 6, turn, begin)[2].stack(), [1, 0, 2])


def keras_masked(tf: Any, error: Any, mask: Any) -> Any:
    """Return a loss by the rule that Keras 1 and 2 had for masks."""
    return tf.reduce_mean(error * mask / tf.reduce_mean(mask))


def cox(tf: Any, x: Any, w: Any) -> Any:
    order = tf.argsort(x[:, 0], direction="DESCENDING")
    risk = tf.gather(tf.matmul(x, w)[:, 0], order)
    return tf.reduce_sum(tf.gather(x[:, 1], order) * (risk - tf.math.log(tf.cumsum(tf.exp(risk)))))


def balanced(tf: Any, x: Any, w: Any) -> Any:
    positive = tf.cast(x > 0, tf.float32)
    beta = tf.reduce_mean(1 - positive)
    return tf.reduce_mean(tf.matmul(x, w) * (beta * positive + (1 - beta) * (1 - positive)))


def kernel(tf: Any, a: Any, b: Any) -> Any:
    return tf.reduce_mean(tf.exp(-tf.reduce_sum(tf.square(a[:, None] - b[None]), -1)))


OTHERS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "balanced cross-entropy": balanced,
    "a mask by the rule of Keras 2": lambda tf, x, w: keras_masked(
        tf, tf.matmul(x, w), tf.cast(x > 0, tf.float32)
    ),
    "Cox": cox,
    "normalized advantages": lambda tf, x, w: tf.reduce_mean(
        tf.matmul(x, w) * (x - tf.reduce_mean(x)) / (tf.math.reduce_std(x) + 1e-8)
    ),
    "hard examples": lambda tf, x, w: tf.reduce_mean(tf.math.top_k(x[:, 0], tf.shape(x)[0] // 2)[0]),
    "a fixed number of hard examples": lambda tf, x, w: tf.reduce_mean(tf.math.top_k(x[:, 0], 3)[0]),
    "normalized by the batch": lambda tf, x, w: (x - tf.reduce_mean(x, 0)) / tf.math.reduce_std(x, 0),
    "normalized by moments": lambda tf, x, w: tf.nn.batch_normalization(
        x, *tf.nn.moments(x, [0]), None, None, 1e-3
    ),
    "a softmax over the batch": lambda tf, x, w: tf.reduce_mean(tf.nn.softmax(x, axis=0) * x),
    "a softmax of a vector": lambda tf, x, w: tf.reduce_sum(tf.nn.softmax(x[:, 0])),
    "the deviation of the batch": lambda tf, x, w: tf.concat(
        [x, tf.ones_like(x[:, :1]) * tf.reduce_mean(tf.math.reduce_std(x, axis=0))], axis=1
    ),
    "pairs by reverse": lambda tf, x, w: tf.reduce_mean(tf.square(x - tf.reverse(x, [0]))),
    "pairs by a slice backwards": lambda tf, x, w: tf.reduce_mean(tf.square(x - x[::-1])),
    "pairs by roll": lambda tf, x, w: tf.reduce_mean(tf.square(x - tf.roll(x, 1, axis=0))),
    "pairs of neighbours": lambda tf, x, w: tf.reduce_mean(tf.square(x[1:] - x[:-1])),
    "pairs of halves": lambda tf, x, w: tf.reduce_mean(x[: tf.shape(x)[0] // 2] - x[tf.shape(x)[0] // 2 :]),
    "pairs by strides": lambda tf, x, w: tf.reduce_mean(x[::2] - x[1::2]),
    "pairs by reshape": lambda tf, x, w: tf.reduce_mean(
        tf.abs(tf.reduce_sum(tf.reshape(x, [-1, 2, 6]), axis=1))
    ),
    "the first examples": lambda tf, x, w: tf.reduce_mean(x[:3]),
    "the first by slice": lambda tf, x, w: tf.reduce_mean(tf.slice(x, [0, 0], [3, -1])),
    "the last example": lambda tf, x, w: tf.reduce_mean(x[-1]),
    "unstacked examples": lambda tf, x, w: tf.reduce_mean(tf.unstack(tf.ensure_shape(x, [4, 6]))[1]),
    "maximum mean discrepancy": lambda tf, x, w: kernel(tf, x, x) - 2 * kernel(tf, x, x @ w),
    "centred": lambda tf, x, w: tf.reduce_mean(tf.square(x - tf.reduce_mean(x, axis=0, keepdims=True))),
    "divided by the largest": lambda tf, x, w: tf.reduce_mean(x / tf.reduce_max(tf.abs(x))),
    "normalized along the batch": lambda tf, x, w: tf.reduce_mean(tf.math.l2_normalize(x, axis=0) * w[0]),
    "divided by the positives": lambda tf, x, w: (
        tf.reduce_sum(x @ w) / tf.reduce_sum(tf.cast(x > 0, tf.float32))
    ),
    "divided by at least one": lambda tf, x, w: (
        tf.reduce_sum(x * w[0]) / tf.maximum(tf.reduce_sum(tf.cast(x > 0, tf.float32)), 1.0)
    ),
    "divided by one less": lambda tf, x, w: tf.reduce_sum(x) / (tf.cast(tf.shape(x)[0], tf.float32) - 1.0),
    "what a mask leaves": lambda tf, x, w: tf.reduce_mean(tf.boolean_mask(x, x[:, 0] > 0)),
    "cumulated": lambda tf, x, w: tf.reduce_mean(tf.cumsum(x, axis=0)),
    "sorted": lambda tf, x, w: tf.reduce_mean(tf.sort(x, axis=0) * x),
    "a place in the batch": lambda tf, x, w: tf.reduce_mean(
        x[:, 0] * tf.cast(tf.range(tf.shape(x)[0]), tf.float32)
    ),
    "the largest example": lambda tf, x, w: tf.reduce_mean(tf.gather(x, tf.argmax(x[:, 0]))),
    "segments": lambda tf, x, w: tf.math.unsorted_segment_mean(x, tf.cast(x[:, 0] > 0, tf.int32), 2),
    "times one by the count": lambda tf, x, w: (1.0 / tf.cast(tf.shape(x)[0], tf.float32)) * tf.reduce_sum(x),
    "a product of all": lambda tf, x, w: tf.reduce_prod(x[:, 0]),
    "log of a sum of all": lambda tf, x, w: tf.reduce_logsumexp(x),
    "one in the loop": lambda tf, x, w: recurrent(tf, x - tf.reduce_max(x), w),
    "under a condition of the batch": lambda tf, x, w: tf.cond(tf.reduce_sum(x) > 0, lambda: x, lambda: -x),
    "halves of the count": lambda tf, x, w: tf.reduce_sum(x) * tf.cast(tf.shape(x)[0] // 2, tf.float32),
    "shifted by a choice": lambda tf, x, w: tf.gather_nd(
        x, tf.stack([tf.range(tf.shape(x)[0]) - 1, tf.cast(tf.argmax(x, 1), tf.int32)], 1)
    ),
    "a list of examples": lambda tf, x, w: tf.map_fn(lambda row: row - tf.reduce_max(x), x),
    "repeated one after the other": lambda tf, x, w: tf.tile(x, [2, 1]) * tf.concat([x, -x], 0),
    "several in one row": lambda tf, x, w: tf.reduce_mean(tf.abs(tf.reduce_sum(tf.reshape(x, [-1, 12]), 1))),
    "a histogram": lambda tf, x, w: tf.histogram_fixed_width(x, [0.0, 1.0], 5),
    "Pearson": lambda tf, x, w: tf.reduce_sum((x - tf.reduce_mean(x)) * w[0]) / tf.sqrt(tf.reduce_sum(x * x)),
    "dice": lambda tf, x, w: (
        2 * tf.reduce_sum(x * w[0]) / (tf.reduce_sum(x) + tf.reduce_sum(w[0] * x * x) + 1)
    ),
    "a root of a mean": lambda tf, x, w: tf.sqrt(tf.reduce_mean(x)),
    "a mean squared": lambda tf, x, w: tf.square(tf.reduce_mean(x)),
    "a product of means": lambda tf, x, w: tf.reduce_mean(x) * tf.reduce_mean(x * w[0]),
    "the largest": lambda tf, x, w: tf.reduce_max(x),
    "kept above a bound": lambda tf, x, w: tf.maximum(tf.reduce_sum(x), 1.0),
    "examples compared": lambda tf, x, w: tf.reduce_mean(tf.matmul(x, x, transpose_b=True)),
    "examples subtracted": lambda tf, x, w: tf.reduce_sum(x[:, None, :] - x[None]),
    "columns against rows": lambda tf, x, w: tf.reduce_mean(x[:, 0] - x[:, :1]),
    "triplets of a batch": lambda tf, x, w: tf.reduce_mean(tf.split(x, 3)[1]),
    "parts of unequal size": lambda tf, x, w: tf.reduce_mean(tf.split(x, [2, -1], axis=0)[0]),
    "compared by einsum": lambda tf, x, w: tf.reduce_mean(tf.einsum("ik,jk->ij", x, x)),
    "distances by einsum": lambda tf, x, w: tf.einsum("ik,il->ikl", x, tf.einsum("ik,jk->ij", x, x)),
    "weighted by the batch": lambda tf, x, w: tf.matmul(x, tf.matmul(x, x, transpose_a=True)),
    "cast from a sum": lambda tf, x, w: tf.cast(tf.reduce_sum(tf.cast(x > 0, tf.int32)), tf.float32),
    "a median": lambda tf, x, w: tf.sort(x[:, 0])[tf.shape(x)[0] // 2],
    "ranks": lambda tf, x, w: tf.reduce_mean(tf.cast(tf.argsort(tf.argsort(x[:, 0])), tf.float32) * x[:, 1]),
    "the entropy of a mean": lambda tf, x, w: tf.reduce_sum(
        tf.reduce_mean(x, 0) * tf.math.log(tf.reduce_mean(x, 0))
    ),
    "whitened": lambda tf, x, w: tf.linalg.triangular_solve(
        tf.linalg.cholesky(tf.matmul(x, x, transpose_a=True)), tf.transpose(x)
    ),
    "a covariance of the centred": lambda tf, x, w: tf.matmul(
        x - tf.reduce_mean(x, 0), x - tf.reduce_mean(x, 0), transpose_a=True
    ),
    "divided by the length of all": lambda tf, x, w: tf.reduce_mean(x / tf.norm(x)),
    "between least and most": lambda tf, x, w: (
        (x - tf.reduce_min(x, 0)) / (tf.reduce_max(x, 0) - tf.reduce_min(x, 0))
    ),
    "moved on by one": lambda tf, x, w: tf.reduce_mean(x * tf.concat([x[1:], x[:1]], 0)),
    "convolved over the batch": lambda tf, x, w: tf.nn.conv1d(x[None], w[None, :, :2], 1, "SAME"),
    "pooled over the batch": lambda tf, x, w: tf.nn.max_pool1d(x[None], 2, 1, "SAME"),
    "resized over the batch": lambda tf, x, w: tf.image.resize(x[None, ..., None], [8, 8]),
    "patches over the batch": lambda tf, x, w: tf.image.extract_patches(
        x[None, ..., None], [1, 2, 2, 1], [1, 1, 1, 1], [1, 1, 1, 1], "SAME"
    ),
    "a spectrum over the batch": lambda tf, x, w: tf.abs(
        tf.signal.fft(tf.cast(tf.transpose(x), tf.complex64))
    ),
    "singular values of the batch": lambda tf, x, w: tf.linalg.svd(x[None], compute_uv=False),
    "the diagonal of all pairs": lambda tf, x, w: tf.linalg.diag_part(tf.matmul(x, x, transpose_b=True)),
    "looked up in the batch": lambda tf, x, w: tf.gather(x, tf.cast(tf.abs(x[:, 0]), tf.int32)),
    "scattered by label": lambda tf, x, w: tf.scatter_nd(
        tf.cast(tf.abs(x[:, :1]), tf.int32), x, tf.constant([4, 6])
    ),
    "written into the batch": lambda tf, x, w: tf.tensor_scatter_nd_add(x, [[0]], x[:1]),
    "by partition": lambda tf, x, w: tf.reduce_mean(
        tf.dynamic_partition(x, tf.cast(x[:, 0] > 0, tf.int32), 2)[1]
    ),
    "where it is positive": lambda tf, x, w: tf.where(x > 0),
    "unique labels": lambda tf, x, w: tf.cast(tf.size(tf.unique(x[:, 0])[0]), tf.float32),
    "counted by label": lambda tf, x, w: tf.math.bincount(tf.cast(tf.abs(x[:, 0]), tf.int32), minlength=4),
    "a scan over the examples": lambda tf, x, w: tf.scan(lambda a, b: 0.9 * a + b, x),
    "reversed up to a length": lambda tf, x, w: tf.reverse_sequence(
        x[None], tf.fill([1], tf.shape(x)[0]), seq_axis=1, batch_axis=0
    ),
    "the best example's place": lambda tf, x, w: tf.one_hot(tf.argmax(x, axis=0), 8),
    "a quantile by place": lambda tf, x, w: tf.gather(tf.sort(x, axis=0), 3 * tf.shape(x)[0] // 4),
    "a moving mean over the batch": lambda tf, x, w: tf.cumsum(x[:, 0]) / tf.cumsum(tf.ones_like(x[:, 0])),
    "all pairs by repeat": lambda tf, x, w: tf.reduce_mean(
        tf.abs(tf.repeat(x, tf.shape(x)[0], axis=0) - tf.tile(x, [tf.shape(x)[0], 1]))
    ),
    "all pairs by meshgrid": lambda tf, x, w: tf.subtract(*tf.meshgrid(x[:, 0], x[:, 0])),
    "a mean of those above the mean": lambda tf, x, w: tf.reduce_sum(tf.where(x > tf.reduce_mean(x), x, 0.0)),
    "weights that sum up to one": lambda tf, x, w: tf.reduce_sum(
        x * tf.exp(x[:, :1]) / tf.reduce_sum(tf.exp(x[:, :1]))
    ),
    "a threshold by the batch": lambda tf, x, w: tf.reduce_mean(
        tf.cast(x[:, 0] > tf.reduce_max(x[:, 0]) * 0.5, tf.float32)
    ),
    "a determinant of the batch": lambda tf, x, w: tf.linalg.logdet(
        tf.matmul(x, x, transpose_a=True) + tf.eye(6)
    ),
    "concordance": lambda tf, x, w: tf.reduce_mean(
        tf.cast((x[:, 0][:, None] - x[:, 0][None]) * (x[:, 1][:, None] - x[:, 1][None]) > 0, tf.float32)
    ),
    "even and odd by reshape": lambda tf, x, w: (
        tf.reshape(x, [-1, 2, 6])[:, 0] * tf.reshape(x, [-1, 2, 6])[:, 1]
    ),
    "a transposed batch in rows": lambda tf, x, w: tf.reduce_max(
        tf.reshape(tf.transpose(x), [6, -1]), axis=1
    ),
}
"""Each was once taken for something that every replica could compute of its own part, or is of the same kind."""

VALUES.update({name: ("other", value) for name, value in OTHERS.items()})


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


def test_no_ordinary_loss_of_keras_needs_the_whole_batch() -> None:
    import keras
    import tensorflow as tf

    names = [
        "binary_crossentropy",
        "binary_focal_crossentropy",
        "categorical_crossentropy",
        "categorical_focal_crossentropy",
        "categorical_hinge",
        "cosine_similarity",
        "huber",
        "kl_divergence",
        "log_cosh",
        "mean_absolute_error",
        "mean_absolute_percentage_error",
        "mean_squared_error",
        "mean_squared_logarithmic_error",
        "poisson",
    ]
    found: dict[str, str] = {}

    def step(y: Any, p: Any) -> Any:
        known = Kinds()
        for tensor in (y, p):
            known.set(tensor, each())
        for name in names:
            found[name] = known.kind_of(getattr(keras.losses, name)(y, p)).name
        labels = tf.argmax(y, axis=-1)
        found["sparse"] = known.kind_of(keras.losses.sparse_categorical_crossentropy(labels, p)).name
        found["mean"] = known.kind_of(keras.losses.MeanSquaredError()(y, p)).name
        found["weighted"] = known.kind_of(keras.losses.BinaryCrossentropy()(y, p, sample_weight=y[:, 0])).name

    spec = tf.TensorSpec([None, 6])
    tf.function(step, autograph=False).get_concrete_function(spec, spec)
    assert found == dict.fromkeys([*names, "sparse"], "each") | {"mean": "mean", "weighted": "mean"}


def test_what_keras_layers_compute_is_one_value_for_each_example() -> None:
    import keras
    import tensorflow as tf
    from keras import layers

    image, steps, words = [None, 8, 8, 3], [None, 5, 6], ([None, 5], "int32")
    recurrent = [layers.LSTM, layers.GRU, layers.SimpleRNN]
    every: list[tuple[Any, Any]] = [
        *(
            (layers.Conv2D(4, 3, **given), image)
            for given in ({"strides": 2}, {"dilation_rate": 2}, {"groups": 1})
        ),
        *((layers.Conv2DTranspose(4, 3, padding=padding), image) for padding in ("same", "valid")),
        (layers.SeparableConv2D(4, 3), image),
        (layers.Conv3DTranspose(2, 2), [None, 4, 4, 4, 2]),
        (layers.UpSampling2D(2), image),
        (layers.UpSampling2D(2, interpolation="bilinear"), image),
        (layers.GroupNormalization(3), [None, None, None, 3]),
        (layers.LayerNormalization(), steps),
        (layers.RepeatVector(3), [None, 6]),
        (layers.GroupQueryAttention(4, 4, 2), (steps, steps)),
        (layers.MultiHeadAttention(2, 4, dropout=0.1), ([None, None, 6], [None, None, 6])),
        (layers.Attention(), [steps, steps]),
        (layers.ConvLSTM2D(3, 3), [None, 4, 8, 8, 3]),
        (layers.TimeDistributed(layers.Dense(3)), steps),
        (layers.Bidirectional(layers.GRU(4, return_sequences=True)), [None, None, 6]),
        *(
            (layer(4, unroll=unroll, go_backwards=not unroll), steps)
            for layer in recurrent
            for unroll in (0, 1)
        ),
        *(
            (
                keras.Sequential([layers.Embedding(9, 4, mask_zero=True), layer(4, return_sequences=True)]),
                words,
            )
            for layer in recurrent
        ),
        (keras.Sequential([layers.Masking(), layers.Bidirectional(layers.LSTM(3))]), [None, None, 6]),
        (layers.RandomRotation(0.2), image),
    ]
    others: list[str] = []

    def step() -> None:
        known = Kinds()

        def given(shape: Any) -> Any:
            if isinstance(shape[-1], list):
                return type(shape)(given(one) for one in shape)
            sizes, dtype = (shape, "float32") if isinstance(shape, list) else shape
            tensor = tf.compat.v1.placeholder_with_default(
                tf.zeros([size or 2 for size in sizes], dtype), sizes
            )
            known.set(tensor, each())
            return tensor

        for layer, shape in every:
            inputs = given(shape)
            found = layer(*inputs) if isinstance(inputs, tuple) else layer(inputs)
            if not known.kind_of(found).like(each()):
                others.append(f"{layer.name}: {known.kind_of(found).name}")

    tf.function(step, autograph=False).get_concrete_function()
    assert others == []


def test_layers_of_tf_keras_run_what_is_said_of_them_within_a_traced_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keras = pytest.importorskip("tf_keras")
    import numpy as np

    for layer in (keras.layers.BatchNormalization, keras.layers.LayerNormalization):
        asked: list[str] = []
        monkeypatch.setattr(layer, "call", figures.call_of_each_example(layer.call))
        model = keras.Sequential([keras.layers.Dense(4, input_shape=(3,)), layer(), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        monkeypatch.setattr(steps, "current", lambda asked=asked: asked.append("whose step it is"))
        model.fit(np.ones((8, 3), "float32"), np.ones((8, 1), "float32"), verbose=0)
        assert asked, layer.__name__


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


class Twin:
    """The context of the first of two replicas that have equal parts of a batch."""

    replica_id_in_sync_group = 0

    def all_reduce(self, _op: Any, value: Any) -> Any:
        import tensorflow as tf

        return tf.nest.map_structure(lambda each: 2 * each, value)

    def all_gather(self, value: Any, axis: int) -> Any:
        import tensorflow as tf

        return tf.concat([value, value], axis)


TWO: Any = SimpleNamespace(num_replicas_in_sync=2, extended=SimpleNamespace(worker_devices=["CPU:0"]))


def in_a_step(compute: Callable[[Any, Any], Any], *batch: Any) -> Any:
    """Return what is computed in a step of a Twin from its part of a batch."""
    import tensorflow as tf

    def traced(*data: Any) -> Any:
        step = Step(Kinds(), TWO, data, context=Twin())
        step.replicas = 2
        with steps.entered(step):
            return compute(step, *step.data)

    return tf.function(traced, autograph=False)(*batch)


def test_what_python_computes_is_that_of_the_whole_batch_and_has_no_gradient() -> None:
    """TensorFlow keeps one tape for such an operation, that of its last call: of the whole batch, or of a part."""
    import tensorflow as tf

    def compute(step: Any, x: Any) -> Any:
        found = tf.py_function(tf.reduce_sum, [x * x], tf.float32)
        ordinary = tf.reduce_max(x)
        assert len(list(step.starts(ordinary))) == 1
        for value in (found, tf.sqrt(found)):
            with pytest.raises(NotOfTheBatch, match=r"a tf\.py_function has no gradient for it"):
                list(step.starts(value))
        return step.whole(found).value

    assert float(in_a_step(compute, tf.constant([[1.0], [3.0]]))) == 20.0


@pytest.mark.parametrize("examples", [0, 2, 4])
def test_a_weights_gradient_of_the_whole_batch_comes_from_replicas_with_examples(examples: int) -> None:
    """What a replica without examples would add is left out, since a mean of nothing is not a number."""
    import tensorflow as tf

    weight = tf.Variable(3.0)

    def compute(step: Any, x: Any) -> Any:
        step.examples, step.total = tf.constant(float(examples)), tf.constant(4.0)
        read = tf.identity(weight)
        found = {part.ref(): gradient for part, gradient in step.starts(tf.reduce_max(x) * read)}
        return found[read.ref()]

    assert float(in_a_step(compute, tf.constant([[1.0], [5.0]]))) == 5.0 * examples / 4


def test_texts_of_a_batch_are_gathered_as_they_are() -> None:
    import tensorflow as tf

    texts = [["", "positive"], ["a\0b", "größer"], ["\0", "x" * 300]]
    for given in (texts, texts[0], [[text] for text in texts]):
        found = in_a_step(lambda step, x: step.gathered(x), tf.constant(given)).numpy()
        assert found.tolist() == [*tf.constant(given).numpy().tolist()] * 2


def test_texts_are_as_wide_as_the_longest_of_the_whole_batch_and_one_row_for_each_example() -> None:
    """Of each replica's own longest, a mean over words would depend on who has which text."""
    import keras
    import tensorflow as tf

    class WithLonger(Twin):
        """The other replica has a text of five words."""

        def all_gather(self, value: Any, axis: int) -> Any:
            return tf.concat([value, tf.fill(tf.shape(value), tf.cast(5, value.dtype))], axis)

    words = keras.layers.TextVectorization(vocabulary=["good", "day"])
    call = steps.of_each_example(figures._as_wide_as_the_batch(words.call))
    assert call(tf.constant(["good day"])).shape == (1, 2)  # outside of a step, as one process has it

    def compute(step: Any, x: Any) -> Any:
        step.context = WithLonger()
        step.kinds.set(x, each())
        found = call(x)
        assert step.kinds.kind_of(found).like(each())
        return found

    assert in_a_step(compute, tf.constant(["good day", "day"])).numpy().tolist() == [
        [2, 3, 0, 0, 0],
        [3, 0, 0, 0, 0],
    ]


def test_a_variable_that_a_step_assigns_gets_what_is_of_the_whole_batch() -> None:
    import tensorflow as tf

    class Told(Exception):
        pass

    def refused(message: str) -> Exception:
        return Told(message)

    report: Any = SimpleNamespace(unsupported=refused)
    assigned: list[Any] = []
    assign = figures._of_all_replicas(lambda _, value: assigned.append(value), report, "train.py", "/nowhere")
    none, summed = tf.VariableAggregation.NONE, tf.VariableAggregation.SUM

    def compute(step: Any, x: Any) -> Any:
        variable = SimpleNamespace(name="centre", aggregation=none)
        for value in (tf.reduce_mean(x), tf.reduce_sum(x), 0.5 * tf.reduce_sum(x) + 1.0, tf.reduce_max(x)):
            assign(variable, value)
        # These stay as they are: it is equal on all replicas, TensorFlow adds it up, or the layer keeps its own
        assign(variable, tf.constant(7.0) * 2.0)
        assign(SimpleNamespace(name="seen", aggregation=summed), tf.reduce_sum(x))
        step.own_statistics = True
        assign(variable, tf.reduce_sum(x))
        step.own_statistics = False
        with pytest.raises(
            Told, match=r"train\.py: the variable centre is assigned what is neither a sum nor"
        ):
            assign(variable, tf.abs(tf.reduce_prod(tf.complex(x, x))))
        return assigned

    found = in_a_step(compute, tf.constant([[1.0], [3.0]]))
    assert [float(each) for each in found] == [2.0, 8.0, 5.0, 3.0, 14.0, 4.0, 4.0]


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
