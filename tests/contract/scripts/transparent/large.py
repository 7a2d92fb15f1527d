"""A regression whose backup has 21 MB: weights of 7 MB, and twice as much of Adam."""

import time

import keras
import numpy as np

keras.utils.set_random_seed(3)
generator = np.random.default_rng(5)
x = generator.normal(size=(320, 8)).astype("float32")
model = keras.Sequential(
    [keras.Input((8,)), keras.layers.Dense(1320), keras.layers.Dense(1320), keras.layers.Dense(1)]
)
model.compile("adam", "mse")


class Slowly(keras.callbacks.Callback):
    """Makes steps long enough to be hit."""

    def on_train_batch_begin(self, batch, logs=None):
        """Wait."""
        time.sleep(0.02)


model.fit(x, x.sum(axis=1), batch_size=16, epochs=4, verbose=0, callbacks=[Slowly()])
