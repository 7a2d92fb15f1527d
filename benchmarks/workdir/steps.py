"""Trains with Keras's `fit` under MultiWorkerMirroredStrategy, a block of steps whenever it is asked for one.

Several of these processes, one by hand and others under orch, train by turns: so all of them run under the same load of
the machine, which would differ if one trained for a minute and then the other.

    python steps.py ORDERS ANSWERS [--silent]

reads a line of JSON for each order from the FIFO `ORDERS`, and writes one for each answer to `ANSWERS`. An order is
`{"batch": 32, "epoch": 500}`, which begins another `fit`, or `{"steps": 60, "untimed": 4}`, which is answered with the
seconds of that block, by the clock and of CPU.
"""

import json
import os
import sys
import time
from typing import Any

import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()

import keras  # noqa: E402
import numpy as np  # noqa: E402


class Orders:
    """The orders, and the way back."""

    def __init__(self, orders: str, answers: str) -> None:
        # Opened for both, so that neither end is ever seen as closed.
        self._in = os.fdopen(os.open(orders, os.O_RDWR), "rb", buffering=0)
        self._out = os.open(answers, os.O_RDWR)

    def next(self) -> dict[str, Any]:
        """Wait for an order."""
        return dict(json.loads(self._in.readline()))

    def answer(self, wall_s: float, cpu_s: float) -> None:
        """Answer that a block is done."""
        os.write(self._out, json.dumps({"wall_s": wall_s, "cpu_s": cpu_s}).encode() + b"\n")


class Blocks(keras.callbacks.Callback):  # type: ignore[misc]  # untyped
    """Trains block by block. `wanted` is the next order for another `fit`, once there is one."""

    def __init__(self, orders: Orders) -> None:
        super().__init__()
        self.wanted: dict[str, Any] | None = None
        self._orders = orders
        self._left = 0
        self._untimed = 0
        self._began = (0.0, 0.0)

    def on_train_batch_begin(self, batch: int, logs: object = None) -> None:  # noqa: ARG002 (Keras's names)
        # The time is taken from begin to begin, so that it includes the cost of all callbacks.
        if self.wanted is not None:
            return  # the last step of this fit
        if self._left == 0 and self._untimed == 0:
            if self._began != (0.0, 0.0):
                wall, cpu = self._began
                self._orders.answer(time.perf_counter() - wall, time.process_time() - cpu)
            order = self._orders.next()
            if "batch" in order:
                self.wanted = order
                self.model.stop_training = True
                return
            self._left, self._untimed = int(order["steps"]), int(order["untimed"])
            self._began = time.perf_counter(), time.process_time()
        if self._untimed:
            self._untimed -= 1
            self._began = (0.0, 0.0)
            return
        if self._began == (0.0, 0.0):
            self._began = time.perf_counter(), time.process_time()
        self._left -= 1


def made() -> Any:
    """Return the model."""
    with strategy.scope():
        layers = [keras.layers.Dense(768, activation="relu") for _ in range(4)]
        model = keras.Sequential([keras.Input((256,)), *layers, keras.layers.Dense(10)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer=keras.optimizers.SGD(1e-3), loss=loss, metrics=["accuracy"])
    return model


def data(batch: int, batches: int) -> tf.data.Dataset:
    """Return so many batches again and again.

    There is no end of an epoch, since TensorFlow stands still for a second or more at some of them, also by hand.
    """
    x = np.random.default_rng(7).standard_normal((batch * batches, 256), dtype="float32")
    y = (x[:, :10].argmax(axis=1)).astype("int32")
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return (
        tf.data.Dataset.from_tensor_slices((x, y))
        .batch(batch, drop_remainder=True)
        .repeat()
        .with_options(options)
    )


def main() -> None:
    if "--silent" in sys.argv:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    orders = Orders(*sys.argv[1:3])
    keras.utils.set_random_seed(7)
    model, wanted = made(), orders.next()
    while True:
        blocks = Blocks(orders)
        # With the bar of progress, as `fit` has it unless one asks for less: its lines are what logs are made of.
        model.fit(
            data(wanted["batch"], wanted["batches"]), steps_per_epoch=10**9, callbacks=[blocks], verbose=1
        )
        if blocks.wanted is None:
            return
        wanted = blocks.wanted


if __name__ == "__main__":
    main()
