"""A script with a strategy and callbacks of its own, one of which is orchestrator.keras.Checkpoint.

Its workers have other paces: each batch takes the second one longer.
"""

import json
import os
import sys
import time

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

from orchestrator.keras import Checkpoint

pause_s = float(sys.argv[1]) if len(sys.argv) > 1 else 0.0
index = json.loads(os.environ.get("TF_CONFIG") or "{}").get("task", {}).get("index", 0)
strategy = (
    tf.distribute.MultiWorkerMirroredStrategy()
    if os.environ.get("TF_CONFIG")
    else tf.distribute.get_strategy()
)
keras.utils.set_random_seed(3)
images, labels = load_digits(return_X_y=True)
images, labels = (images[:960] / 16.0).astype("float32"), labels[:960]


class Slow(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(pause_s * (1 + index))


with strategy.scope():
    model = keras.Sequential(
        [keras.Input((64,)), keras.layers.Dense(24, "tanh"), keras.layers.Dense(10, "softmax")]
    )
    model.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy", metrics=["accuracy"])
data = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(960, seed=5).batch(48)
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
history = model.fit(
    data.with_options(options),
    epochs=5,
    verbose=0,
    callbacks=[keras.callbacks.ReduceLROnPlateau("loss", patience=1), Checkpoint(), Slow()],
)
weights = [float(np.abs(w.numpy()).sum()) for w in model.weights]
print(
    json.dumps(
        {
            "weights": weights,
            "epochs": history.history["loss"],
            "steps": int(model.optimizer.iterations.numpy()),
        }
    )
)
