"""A classifier with everything whose state a step changes: weights, Adam, moving averages, dropout, metrics.

With DIES_AT, worker 1 kills itself once, at this moment of the second epoch.
"""

import json
import os
import signal
import sys
import time

import keras
import numpy as np

keras.utils.set_random_seed(3)
generator = np.random.default_rng(5)
x = generator.normal(size=(320, 8)).astype("float32")
y = (x.sum(axis=1) > 0).astype("int32")
model = keras.Sequential(
    [
        keras.Input((8,)),
        keras.layers.Dense(16, activation="relu"),
        keras.layers.Dropout(0.3),
        keras.layers.Dense(2, activation="softmax"),
    ]
)
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])

is_victim = json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 1


class Slowly(keras.callbacks.Callback):
    """Makes steps long enough to be hit, and ends the process at a moment."""

    def on_train_batch_begin(self, batch, logs=None):
        """Wait."""
        time.sleep(0.02)

    def on_train_batch_end(self, batch, logs=None):
        """Tell that a step is done, of 20."""
        self.reach(f"step {batch + 1}")

    def on_test_batch_begin(self, batch, logs=None):
        """Tell that a step of the evaluation comes, of 4."""
        self.reach(f"evaluation {batch + 1}")

    def reach(self, moment):
        """Die if it is the moment."""
        is_second = int(self.model.optimizer.iterations.numpy()) == 40
        if is_second and is_victim and moment == os.environ.get("DIES_AT"):
            os.kill(os.getpid(), signal.SIGKILL)


fitted = model.fit(
    x, y, batch_size=16, epochs=3, validation_data=(x[:64], y[:64]), callbacks=[Slowly()], verbose=0
)
evaluated = np.asarray(fitted.history["val_loss"])
np.savez(sys.argv[1], evaluated, *map(np.asarray, model.get_weights()))
