"""An ordinary Keras script that something slows down: `input`, `worker:1` or nothing."""

import os
import sys
import time
from collections.abc import Iterator
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

kind = sys.argv[1]
STEP_S = 0.05


def batches() -> Iterator[tuple[Any, Any]]:
    while True:
        if kind == "input":
            time.sleep(STEP_S)
        yield np.ones((32, 8), "float32"), np.ones((32, 1), "float32")


class Slow(keras.callbacks.Callback):
    """Sleeps in one worker only."""

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        """Keep the others waiting."""
        del batch, logs
        if os.environ["ORCH_TASK"] == kind:
            time.sleep(STEP_S)


shapes = (tf.TensorSpec((32, 8)), tf.TensorSpec((32, 1)))
data = tf.data.Dataset.from_generator(batches, output_signature=shapes)
if kind != "input":
    data = data.take(64).cache().repeat().prefetch(8)
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(data, steps_per_epoch=100_000, epochs=1, verbose=0, callbacks=[Slow()])
