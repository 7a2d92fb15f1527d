"""`fit` under a strategy of this machine that is built without arguments; `keras` is 3 or 2.

python local_fit.py mirrored|central_storage [3|2]
"""

import json
import os
import sys

kind, legacy = sys.argv[1], sys.argv[2] == "2"
if legacy:
    os.environ["TF_USE_LEGACY_KERAS"] = "1"

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

if kind == "mirrored":
    strategy = tf.distribute.MirroredStrategy()
else:
    strategy = tf.distribute.experimental.CentralStorageStrategy()

keras = tf.keras
keras.utils.set_random_seed(5)
rng = np.random.default_rng(0)
x = rng.normal(size=(128, 6)).astype("float32")
y = (x.sum(1) > 0).astype("float32")
with strategy.scope():
    model = keras.Sequential(
        [
            keras.layers.Input((6,)),
            keras.layers.Dense(8),
            keras.layers.BatchNormalization(momentum=0.9),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
moving = model.layers[1].moving_mean
before = np.asarray(moving.numpy() if legacy else moving.value.numpy()).copy()
history = model.fit(x, y, batch_size=16, epochs=3, verbose=0, validation_data=(x, y))
loss, accuracy = model.evaluate(x, y, batch_size=16, verbose=0)
predicted = model.predict(x, batch_size=16, verbose=0)[:, 0]
clipped = np.clip(predicted, 1e-7, 1 - 1e-7)
collectives = tf.distribute.experimental.CommunicationOptions()  # central_storage has none of its own
after = np.asarray(moving.numpy() if legacy else moving.value.numpy())
print(
    json.dumps(
        {
            "replicas": strategy.num_replicas_in_sync,
            "pack": getattr(strategy.extended, "_communication_options", collectives).bytes_per_pack,
            "timeout_s": getattr(strategy.extended, "_communication_options", collectives).timeout_seconds,
            "steps": int(model.optimizer.iterations.numpy()),
            "keras": type(model).__module__.partition(".")[0],
            "loss": [float(loss), float(-np.mean(y * np.log(clipped) + (1 - y) * np.log(1 - clipped)))],
            "accuracy": [float(accuracy), float(np.mean((predicted > 0.5) == (y > 0.5)))],
            "fell": history.history["loss"][-1] < history.history["loss"][0],
            "moved": float(np.abs(after - before).max()) > 0.0,
        }
    )
)
