"""Takes a profile of every step."""

import sys

import keras
import numpy as np
import tensorflow as tf


class Profiles(keras.callbacks.Callback):
    """A profile for each step."""

    def on_train_batch_begin(self, batch, logs=None):
        """Start it."""
        tf.profiler.experimental.start(sys.argv[1])

    def on_train_batch_end(self, batch, logs=None):
        """End it."""
        tf.profiler.experimental.stop()


model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(np.ones((2400, 64)), np.ones((2400, 1)), batch_size=16, epochs=1, verbose=0, callbacks=[Profiles()])
try:
    tf.profiler.experimental.stop()
except tf.errors.UnavailableError:
    print("no profile was under way")
