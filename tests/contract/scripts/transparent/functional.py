"""A functional model with two inputs, a schedule, and two calls of fit: the second at another rate."""

import json

import keras
import numpy as np
from sklearn.datasets import load_digits

keras.utils.set_random_seed(2)
images, labels = load_digits(return_X_y=True)
images, labels = (images[:960] / 16.0).astype("float32"), labels[:960]

upper, lower = keras.Input((32,), name="upper"), keras.Input((32,), name="lower")
both = keras.layers.Concatenate()([keras.layers.Dense(16, "tanh")(part) for part in (upper, lower)])
model = keras.Model({"upper": upper, "lower": lower}, keras.layers.Dense(10, "softmax")(both))
model.compile(keras.optimizers.SGD(0.2, momentum=0.9), "sparse_categorical_crossentropy")

x = {"upper": images[:, :32], "lower": images[:, 32:]}
first = model.fit(x, labels, batch_size=96, epochs=3, shuffle=False, verbose=0)
model.compile(keras.optimizers.Adam(0.005), "sparse_categorical_crossentropy")
second = model.fit(x, labels, batch_size=48, epochs=2, shuffle=False, verbose=0)
predicted = model.predict(x, batch_size=96, verbose=0)
loss = float(-np.log(predicted[np.arange(len(labels)), labels]).mean())
print(json.dumps({"loss": loss, "epochs": first.history["loss"] + second.history["loss"]}))
