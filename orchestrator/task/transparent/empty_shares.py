"""Let replicas without an example compute what TensorFlow cannot compute on CPUs without one.

A last batch may be smaller than there are replicas. The kernels of oneDNN, which TensorFlow uses on CPUs, lose the
shape of an empty result, so the next operation fails; in a gradient they end the process. So an operation without a
row is given a row of ones, and that row is cut from its result.

Probed forward and backward with no example: 126 layers of Keras 3 and functions of `tf.nn` and `tf.image`, each
after a Dense layer, and 34 pairs of poolings, convolutions, LayerNormalization and LSTM. What fails: convolutions, also
separable ones and those within ConvLSTM, TimeDistributed and SpectralNormalization; the gradient of max pooling next to
a pooling, a convolution or an LSTM, which ends the process (alone it passed); `max_pool_with_argmax`; the gradient of
`extract_patches`. They pass with the row. Average and global pooling, normalizations, LRN, recurrent layers,
embeddings, attention, resizing and random changes of images need none. BatchNormalization has gradients that are no
number, which `Step.guarded` leaves out. Fractional pooling fails too, and is left alone.

Only what may have no example gets the row: not a step whose batches all have a known number (`drop_remainder`). The
others take about 4 % more CPU time (3 to 5 % measured of steps of 3 ms and 20 ms with two convolutions and poolings).
"""

from __future__ import annotations

import functools

from orchestrator.task.transparent import step as steps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_CONVOLUTIONS = ("convolution", "conv1d", "conv2d", "conv3d", "depthwise_conv2d", "separable_conv2d")
_POOLINGS = ("pool", "max_pool", "max_pool1d", "max_pool2d", "max_pool3d", "max_pool_with_argmax")
_TRANSPOSED = ("conv_transpose", "conv1d_transpose", "conv2d_transpose", "conv3d_transpose")
"""Operations whose third argument is the shape of their result, with the number of examples."""

_FIRST = ("input", "value", "images")
"""The name of the argument that holds the examples."""


def install(strategy: Any) -> None:
    """Patch what both Keras and scripts call of `tf.nn` and `tf.image`."""
    import tensorflow as tf

    if strategy.num_replicas_in_sync == 1 or tf.config.list_logical_devices("GPU"):
        return
    for space in _different(tf.nn, tf.compat.v2.nn):
        for name in (*_CONVOLUTIONS, *_TRANSPOSED, *_POOLINGS):
            setattr(space, name, _of_examples(getattr(space, name), name in _TRANSPOSED))
    for name in ("pool", "max_pool"):  # tf_keras pools with these in one dimension
        setattr(tf.compat.v1.nn, name, _of_examples(getattr(tf.compat.v1.nn, name)))
    for space in _different(tf.image, tf.compat.v2.image):
        space.extract_patches = _of_examples(space.extract_patches)


def _different(*spaces: Any) -> list[Any]:
    """Return each name space once: one that is patched twice adds a row to its own."""
    return list({id(each): each for each in spaces}.values())


def _of_examples(compute: Callable[..., Any], is_given_its_shape: bool = False) -> Callable[..., Any]:
    @steps.of_each_example
    @functools.wraps(compute)
    def compute_examples(*args: Any, **kwargs: Any) -> Any:
        import tensorflow as tf

        given = dict(enumerate(args)) | kwargs
        name = 0 if args else next((each for each in _FIRST if each in given), _FIRST[0])
        x: Any = given.get(name)
        if not tf.is_symbolic_tensor(x) or not x.shape.rank or x.shape[0] or not _may_be_empty():
            return compute(*args, **kwargs)
        rows = tf.shape(x)[0]
        added = tf.maximum(rows, 1) - rows
        # Ones: TensorFlow makes a padding by zeros a part of the convolution, which then has no row again.
        ones = tf.ones([], x.dtype)
        given[name] = tf.pad(x, [[0, added], *[[0, 0]] * (x.shape.rank - 1)], constant_values=ones)
        if is_given_its_shape:
            place = 2 if len(args) > 2 else "output_shape"
            given[place] = _with_rows(given[place], rows + added)
        result = compute(
            *(given[place] for place in range(len(args))),
            **{word: value for word, value in given.items() if isinstance(word, str)},
        )
        return tf.nest.map_structure(functools.partial(_cut, rows), result)

    return compute_examples


def _may_be_empty() -> bool:
    """Return whether there may be no example. Outside of a step nothing is known: Keras predicts there."""
    step = steps.current()
    return step is None or step.may_be_empty


def _cut(rows: Any, y: Any) -> Any:
    import tensorflow as tf

    cut = tf.slice(y, [0] * y.shape.rank, [rows, *[-1] * (y.shape.rank - 1)])
    cut.set_shape([None, *y.shape[1:]])
    return cut


def _with_rows(shape: Any, rows: Any) -> Any:
    """Return the shape of a result with another number of rows."""
    import tensorflow as tf

    if isinstance(shape, (list, tuple)):
        return [rows, *shape[1:]]
    return tf.concat([[rows], tf.cast(shape, rows.dtype)[1:]], axis=0)
