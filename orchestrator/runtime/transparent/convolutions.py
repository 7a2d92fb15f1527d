"""Keep convolutions on CPUs from replicas that have no example.

A last batch may be smaller than there are replicas, or be shared so that one of them gets nothing. The kernels of
oneDNN, which TensorFlow uses on CPUs, lose the shape of such a result, and the next layer fails. So a convolution is
given a row of ones where there is none, and its result is cut again. The other layers of Keras take an empty batch.
"""

from __future__ import annotations

import functools

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_CONVOLUTIONS = ("convolution", "conv1d", "conv2d", "conv3d", "depthwise_conv2d", "separable_conv2d")
_TRANSPOSED = ("conv_transpose", "conv1d_transpose", "conv2d_transpose", "conv3d_transpose")
"""They take the shape of their result, with the number of examples, as the third argument."""


def install(strategy: Any) -> None:
    """Patch the convolutions of `tf.nn`, which both Keras and scripts call."""
    import tensorflow as tf

    if strategy.num_replicas_in_sync == 1 or tf.config.list_logical_devices("GPU"):
        return
    for space in {id(each): each for each in (tf.nn, tf.compat.v2.nn)}.values():
        for name in (*_CONVOLUTIONS, *_TRANSPOSED):
            setattr(space, name, _of_examples(getattr(space, name)))


def _of_examples(convolve: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(convolve)
    def convolve_examples(*args: Any, **kwargs: Any) -> Any:
        import tensorflow as tf

        given, name = dict(enumerate(args)) | kwargs, 0 if args else "input"
        x: Any = given.get(name)
        if not tf.is_symbolic_tensor(x) or not x.shape.rank or x.shape[0]:
            return convolve(*args, **kwargs)
        rows = tf.shape(x)[0]
        added = tf.maximum(rows, 1) - rows
        # Ones: TensorFlow makes a padding by zeros a part of the convolution, which then has no row again.
        ones = tf.ones([], x.dtype)
        given[name] = tf.pad(x, [[0, added], *[[0, 0]] * (x.shape.rank - 1)], constant_values=ones)
        if convolve.__name__ in _TRANSPOSED:
            place = 2 if len(args) > 2 else "output_shape"
            given[place] = _with_rows(given[place], rows + added)
        y = convolve(
            *(given[place] for place in range(len(args))),
            **{word: value for word, value in given.items() if isinstance(word, str)},
        )
        cut = tf.slice(y, [0] * y.shape.rank, [rows, *[-1] * (y.shape.rank - 1)])
        cut.set_shape([None, *y.shape[1:]])
        return cut

    return convolve_examples


def _with_rows(shape: Any, rows: Any) -> Any:
    """Return the shape of a result with another number of rows."""
    import tensorflow as tf

    if isinstance(shape, (list, tuple)):
        return [rows, *shape[1:]]
    return tf.concat([[rows], tf.cast(shape, rows.dtype)[1:]], axis=0)
