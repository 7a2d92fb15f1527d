"""A Sequential model on arrays that Keras shuffles; saves, logs, and prints its final loss."""

import json
import os
import sys

import keras
from sklearn.datasets import load_digits

out = sys.argv[1]
keras.utils.set_random_seed(1)
images, labels = load_digits(return_X_y=True)
images, labels = (images[:1024] / 16.0).astype("float32"), labels[:1024]

model = keras.Sequential(
    [
        keras.Input((64,)),
        keras.layers.Dense(32, activation="relu"),
        keras.layers.Dense(10),
    ]
)
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
os.makedirs(out, exist_ok=True)
history = model.fit(
    images,
    labels,
    batch_size=64,
    epochs=3,
    verbose=0,
    validation_split=0.125,
    callbacks=[
        keras.callbacks.ModelCheckpoint(os.path.join(out, "best.keras"), save_best_only=True),
        keras.callbacks.CSVLogger(os.path.join(out, "log.csv")),
    ],
)
model.save(os.path.join(out, "model.keras"))
loaded = keras.models.load_model(os.path.join(out, "model.keras"))
loss, accuracy = model.evaluate(images, labels, batch_size=64, verbose=0)
assert abs(loaded.evaluate(images, labels, batch_size=64, verbose=0)[0] - loss) < 1e-4
print(json.dumps({"loss": loss, "accuracy": accuracy, "epochs": history.history["loss"]}))
