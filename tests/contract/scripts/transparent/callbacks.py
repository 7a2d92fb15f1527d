"""Callbacks of every kind, of which the chief has more than the other worker, and one that dies or fails with it.

Arguments: where to save what it ends with, by worker, and the table of the epochs. With DIES_AT, worker 1 kills itself
once, in the second epoch: at its end, before the survivor is told of all of it, or in a step.
"""

import json
import os
import signal
import sys
import time

import keras
import numpy as np

place = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
keras.utils.set_random_seed(3)
x = np.random.default_rng(5).normal(size=(160, 8)).astype("float32")
y = (x.sum(axis=1) > 0).astype("int32")
layers = [
    keras.layers.Dense(4),
    keras.layers.BatchNormalization(),
    keras.layers.Dense(2, activation="softmax"),
]
model = keras.Sequential([keras.Input((8,)), *layers])
model.compile(
    keras.optimizers.SGD(0.1, momentum=0.9), "sparse_categorical_crossentropy", metrics=["accuracy"]
)
rate = model.optimizer.learning_rate


class Halves(keras.callbacks.Callback):
    """Halves the learning rate after each epoch."""

    halved = 0

    def on_epoch_end(self, epoch, logs=None):
        """Halve it."""
        self.halved += 1
        rate.assign(rate.numpy() * 0.5)


class Rises(keras.callbacks.Callback):
    """Raises the learning rate before each step, and counts."""

    begun = ended = 0

    def on_train_batch_begin(self, batch, logs=None):
        """Raise it."""
        time.sleep(0.05)
        self.begun += 1
        rate.assign(rate.numpy() * 1.01)

    def on_train_batch_end(self, batch, logs=None):
        """Count."""
        self.ended += 1


class Dies(keras.callbacks.Callback):
    """Ends worker 1; in the other one, what needs it fails."""

    tested = 0

    def on_train_batch_end(self, batch, logs=None):
        """Die behind the fifth step of the second epoch."""
        if self.model.optimizer.iterations == 15:
            self.reach("step")

    def on_epoch_end(self, epoch, logs=None):
        """Die at the end of the second epoch, and else evaluate, which all workers do together."""
        if epoch == 1:
            self.reach("epoch end")
        self.tested += 1
        self.model.evaluate(x[:32], y[:32], verbose=0)

    def reach(self, moment):
        """Die if it is the moment."""
        if place == 1 and os.environ.get("DIES_AT") == moment:
            os.kill(os.getpid(), signal.SIGKILL)


class Last(keras.callbacks.Callback):
    """Counts the ends of epochs and evaluations behind all others."""

    ends = tests = 0

    def on_test_end(self, logs=None):
        """Count."""
        self.tests += 1

    def on_epoch_end(self, epoch, logs=None):
        """Count."""
        self.ends += 1


each = [
    keras.callbacks.LearningRateScheduler(lambda epoch, now: now * 0.9),
    Halves(),
    Rises(),
    Dies(),
    Last(),
]
if place == 0:
    each.insert(
        0,
        keras.callbacks.ModelCheckpoint(
            sys.argv[1] + ".weights.h5", "loss", save_best_only=True, save_weights_only=True
        ),
    )
    each.insert(3, keras.callbacks.CSVLogger(sys.argv[1] + ".csv"))
checked = (x[:32], y[:32])
fitted = model.fit(x, y, batch_size=16, epochs=3, callbacks=each, verbose=0, validation_data=checked)
scheduler, halves, rises, dies, last = [
    one for one in each if "Model" not in type(one).__name__ and "CSV" not in type(one).__name__
]
print(
    json.dumps(
        {
            "rate": float(rate.numpy()),
            "counted": [halves.halved, rises.begun, rises.ended, dies.tested, last.ends, last.tests],
            "history": fitted.history,
            "weights": [float(np.abs(each).sum()) for each in model.get_weights()],
        }
    )
)
