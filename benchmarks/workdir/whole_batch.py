"""Trains a small and a larger model with losses of means, of a quotient of sums and of pairs; prints CPU seconds."""

import json
import sys
import time

import keras
import numpy as np
import tensorflow as tf
from keras import layers

rng = np.random.default_rng(0)


def quotient(y, p):
    return 1 - (2 * tf.reduce_sum(y * p) + 1) / (tf.reduce_sum(y) + tf.reduce_sum(p) + 1)


def of_pairs(y, p):
    alike = tf.matmul(p, p, transpose_b=True)
    return tf.reduce_mean(
        keras.losses.sparse_categorical_crossentropy(tf.range(tf.shape(p)[0]), alike, from_logits=True)
    )


def small():
    x = rng.normal(size=(64, 32)).astype("float32")
    return keras.Sequential([keras.Input((32,)), layers.Dense(64, "relu"), layers.Dense(16, "sigmoid")]), x


def large():
    x = rng.random((64, 32, 32, 3)).astype("float32")
    blocks = [layers.Conv2D(size, 3, 2, "same", activation="relu") for size in (64, 128, 256)]
    return keras.Sequential(
        [keras.Input((32, 32, 3)), *blocks, layers.Flatten(), layers.Dense(64, "sigmoid")]
    ), x


def transformer():
    """Two blocks as of a large language model, with 25 million weights."""
    x = rng.normal(size=(16, 32, 1024)).astype("float32")
    flow = inputs = keras.Input((32, 1024))
    for _ in range(2):
        flow = layers.LayerNormalization()(flow + layers.MultiHeadAttention(16, 64)(flow, flow))
        inner = layers.Dense(1024)(layers.Dense(4096, "gelu")(flow))
        flow = layers.LayerNormalization()(flow + inner)
    return keras.Model(inputs, layers.Dense(16, "sigmoid")(layers.GlobalAveragePooling1D()(flow))), x


def cpu_s(function):
    begun = time.process_time()
    function()
    return time.process_time() - begun


for make, steps in ((small, 20), (large, 4), (transformer, 2)):
    for loss in ("mse", quotient, of_pairs) if make.__name__ in (sys.argv[1:] or make.__name__) else ():
        keras.utils.set_random_seed(1)
        model, x = make()
        batch = len(x)
        y = (rng.random((batch, model.output_shape[-1])) < 0.5).astype("float32")
        model.compile(keras.optimizers.SGD(1e-3), loss)

        def fit(count, model=model, x=x, y=y, batch=batch):
            model.fit(
                np.tile(x, (count,) + (1,) * (x.ndim - 1)),
                np.tile(y, (count, 1)),
                batch,
                shuffle=False,
                verbose=0,
            )

        first = cpu_s(lambda: fit(1))
        one = min(cpu_s(lambda: fit(1)) for _ in range(2))
        step = (cpu_s(lambda: fit(1 + steps)) - one) / steps
        told = {"first": first, "one": one, "step": step, "parameters": model.count_params()}
        print(
            json.dumps({"model": make.__name__, "loss": getattr(loss, "__name__", loss), **told}), flush=True
        )
