"""A Sequential model on arrays that Keras shuffles; saves, logs, and prints its final loss. Its callbacks remember."""

import json
import os
import sys

import keras
from sklearn.datasets import load_digits

out = sys.argv[1]
keras.utils.set_random_seed(1)
images, labels = load_digits(return_X_y=True)
images, labels = (images[:1024] / 16.0).astype("float32"), labels[:1024]


class Counted(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self._seen, self.by_epoch = 0, {}

    def on_train_batch_end(self, batch, logs=None):
        self._seen += 1

    def on_epoch_end(self, epoch, logs=None):
        self.by_epoch[epoch] = self._seen
        logs["epochs"] = epoch


model = keras.Sequential(
    [
        keras.Input((64,)),
        keras.layers.Dense(32, activation="relu"),
        keras.layers.Dense(10),
    ]
)
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
os.makedirs(out, exist_ok=True)
counted = Counted()
history = model.fit(
    images,
    labels,
    batch_size=64,
    epochs=3,
    verbose=0,
    validation_split=0.125,
    callbacks=[
        counted,
        keras.callbacks.EarlyStopping("epochs", mode="min", patience=9, restore_best_weights=True),
        keras.callbacks.ModelCheckpoint(os.path.join(out, "best.keras"), save_best_only=True),
        keras.callbacks.CSVLogger(os.path.join(out, "log.csv")),
    ],
)
model.save(os.path.join(out, "model.keras"))
loaded = keras.models.load_model(os.path.join(out, "model.keras"))
loss, accuracy = model.evaluate(images, labels, batch_size=64, verbose=0)
assert abs(loaded.evaluate(images, labels, batch_size=64, verbose=0)[0] - loss) < 1e-4
print(
    json.dumps(
        {"loss": loss, "accuracy": accuracy, "epochs": history.history["loss"], "counted": counted.by_epoch}
    )
)
