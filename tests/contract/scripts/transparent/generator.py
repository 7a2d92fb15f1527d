"""A Python generator that never ends, with steps_per_epoch."""

import json

import keras
import numpy as np
from sklearn.datasets import load_digits

keras.utils.set_random_seed(4)
images, labels = load_digits(return_X_y=True)
images, labels = (images[:1000] / 16.0).astype("float32"), labels[:1000]


def batches():
    rng = np.random.default_rng(7)
    while True:
        chosen = rng.integers(0, len(images), 64)
        yield images[chosen], labels[chosen]


model = keras.Sequential([keras.layers.Dense(32, activation="relu"), keras.layers.Dense(10)])
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
history = model.fit(batches(), steps_per_epoch=12, epochs=4, verbose=0)
loss = model.evaluate(images, labels, batch_size=100, verbose=0)
print(json.dumps({"loss": loss, "epochs": history.history["loss"]}))
