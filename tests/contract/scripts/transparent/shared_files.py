"""Files that callbacks, and the script after `fit`, open again: k-fold, the best model of each in a fresh directory.

The argument: a directory that all workers share.
"""

import glob
import json
import os
import sys
import tempfile

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(3)
x = np.random.default_rng(0).normal(size=(96, 6)).astype("float32")
y = x.sum(1, keepdims=True)
best, shared, opened = tempfile.mkdtemp(), os.path.join(sys.argv[1], "model.keras"), []


class Logged(keras.callbacks.Callback):
    """Opens what ModelCheckpoint has just saved, as W&B does."""

    def on_epoch_end(self, epoch, logs=None):
        opened.append(os.path.getsize("models/last.keras") > 0)


def network():
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01), "mse")
    return model


for fold in (0, 1):
    model, part = network(), np.arange(96) % 2 != fold
    callbacks = [
        keras.callbacks.ModelCheckpoint(f"{best}/{fold}.keras", save_best_only=True),
        keras.callbacks.ModelCheckpoint("models/last.keras"),
        keras.callbacks.ModelCheckpoint("models/{epoch:02d}.weights.h5", save_weights_only=True),
        Logged(),
    ]
    model.fit(
        x[part], y[part], batch_size=8, epochs=3, verbose=0, validation_data=(x, y), callbacks=callbacks
    )
found = [keras.models.load_model(f"{best}/{fold}.keras").evaluate(x, y, verbose=0) for fold in (0, 1)]
again = network()
again.load_weights(max(glob.glob("models/*.weights.h5")))
model.export("exported")
loaded = tf.saved_model.load("exported")
served = loaded.serve(x[:2])
model.save(shared)
found += [again.evaluate(x, y, verbose=0), keras.models.load_model(shared).evaluate(x, y, verbose=0)]
print(json.dumps({"loss": found, "served": np.ravel(served).tolist(), "opened": all(opened)}))
