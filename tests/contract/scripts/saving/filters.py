"""A script with orchestrator.keras.Checkpoint, which ends itself if asked: python filters.py FILTERS [killed]."""

import os
import sys

import keras
import numpy as np

from orchestrator.keras import Checkpoint

FILTERS = int(sys.argv[1])


class Killed(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1 and "killed" in sys.argv:
            os._exit(9)


keras.utils.set_random_seed(1)
images = np.random.rand(64, 8, 8, 1).astype("float32")
labels = np.random.randint(0, 2, 64)
model = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        keras.layers.Conv2D(FILTERS, 3, name="conv1"),
        keras.layers.Flatten(),
        keras.layers.Dense(2, "softmax"),
    ]
)
model.compile("adam", "sparse_categorical_crossentropy")
model.fit(images, labels, epochs=3, batch_size=8, verbose=0, callbacks=[Checkpoint(), Killed()])
