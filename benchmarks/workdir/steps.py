"""Trains with Keras's `fit` under MultiWorkerMirroredStrategy in blocks of steps, and takes turns with another process.

Two of these processes, one by hand and one under orch, pass a byte to each other through two FIFOs. So both run under
the same load of the machine, which would differ if one trained for a minute and then the other.

    python steps.py BATON_IN BATON_OUT TIMES BLOCKS
"""

import json
import os
import sys
import time

import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()

import keras  # noqa: E402
import numpy as np  # noqa: E402

STEPS = 32
"""The timed steps of a block. At 30 ms per step they take about a second, in which progress is reported."""

UNTIMED = 4
"""The untimed steps at the start of a block, since caches are cold after the wait."""


class Turns(keras.callbacks.Callback):  # type: ignore[misc]  # untyped
    """Waits for the byte, times a block, and passes the byte on."""

    def __init__(self, baton_in: str, baton_out: str, times: str, blocks: int) -> None:
        super().__init__()
        self._out = os.open(baton_out, os.O_RDWR)
        self._in = os.open(baton_in, os.O_RDWR)
        self._times = times
        self._blocks = blocks
        self._blocks_done: list[tuple[float, float]] = []
        self._step = 0
        self._began = (0.0, 0.0)

    def on_train_batch_begin(self, batch: int, logs: object = None) -> None:  # noqa: ARG002 (Keras's names)
        # The time is taken from begin to begin, so that it includes the cost of all callbacks.
        if self._step == STEPS + UNTIMED:
            wall, cpu = self._began
            self._blocks_done.append((time.perf_counter() - wall, time.process_time() - cpu))
            self._step = 0
            os.write(self._out, b"x")
            if len(self._blocks_done) == self._blocks:
                self._end()
                return
        if self._step == 0:
            os.read(self._in, 1)
        elif self._step == UNTIMED:
            self._began = time.perf_counter(), time.process_time()
        self._step += 1

    def _end(self) -> None:
        with open(self._times + ".new", "w") as file:
            json.dump({"steps": STEPS, "blocks": self._blocks_done}, file)
        os.replace(self._times + ".new", self._times)
        self.model.stop_training = True


def main() -> None:
    baton_in, baton_out, times, blocks = sys.argv[1:]
    keras.utils.set_random_seed(7)
    x = np.random.default_rng(7).standard_normal((256 * 128, 256), dtype="float32")
    y = (x[:, :10].argmax(axis=1)).astype("int32")
    with strategy.scope():
        layers = [keras.layers.Dense(768, activation="relu") for _ in range(4)]
        model = keras.Sequential([keras.Input((256,)), *layers, keras.layers.Dense(10)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer=keras.optimizers.SGD(1e-3), loss=loss, metrics=["accuracy"])
    turns = Turns(baton_in, baton_out, times, int(blocks))
    model.fit(x, y, batch_size=256, epochs=100_000, callbacks=[turns], verbose=2)


if __name__ == "__main__":
    main()
