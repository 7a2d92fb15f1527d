"""Trains in fits of two epochs, each with an evaluation: python killed.py OUT FITS MEGABYTES.

It tells each step in a file, and when an epoch is evaluated, a fit has ended, or a process makes its first step.
"""

import json
import os
import sys
import time

import keras
import numpy as np

out, fits, megabytes = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
keras.utils.set_random_seed(3)
generator = np.random.default_rng(5)
x = generator.normal(size=(96 if megabytes else 960, 8, 8, 1)).astype("float32")
y = (x.sum(axis=(1, 2, 3)) > 0).astype("int32")
more = [keras.layers.Dense(int(megabytes * 2**20 / 4 / 290), activation="relu")] if megabytes else []
model = keras.Sequential(
    [
        keras.layers.Input((8, 8, 1)),
        keras.layers.Conv2D(8, 3, activation="relu"),
        keras.layers.Flatten(),
        *more,
        keras.layers.Dropout(0.3),
        keras.layers.Dense(2, activation="softmax"),
    ]
)
model.compile("sgd" if megabytes else "adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
told = os.open(f"{out}/steps.{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def tell(what):
    """Write what is done now."""
    os.write(told, f"{time.clock_gettime(time.CLOCK_BOOTTIME)} {what}\n".encode())


class Tell(keras.callbacks.Callback):
    """Tells when a step is done, by its number."""

    is_first = True

    def on_train_batch_begin(self, batch, logs=None):
        """Make the steps long enough to be hit."""
        if Tell.is_first:
            tell("first-step")
        Tell.is_first = False
        time.sleep(0.01)

    def on_train_batch_end(self, batch, logs=None):
        """Tell it."""
        tell(int(self.model.optimizer.iterations.numpy()))

    def on_test_begin(self, logs=None):
        """Tell that no step is being made."""
        tell("evaluate")


for _ in range(fits):
    model.fit(
        x, y, batch_size=16, epochs=2, validation_data=(x[:320], y[:320]), callbacks=[Tell()], verbose=0
    )
    tell("between")
    time.sleep(0.2)
if rank == 0:
    np.savez(f"{out}/weights.npz", *map(np.asarray, model.get_weights()))
