"""Convolutions in 16 bits with a float32 output: after TensorFlow's mixed precision guide."""

import keras
import numpy as np
from keras import layers

keras.mixed_precision.set_global_policy("mixed_bfloat16")
rng = np.random.default_rng(31)
images, labels = rng.random((160, 12, 12, 1)).astype("float32"), rng.integers(0, 4, 160)
inputs = keras.Input((12, 12, 1))
x = layers.Dense(16, "relu")(layers.Flatten()(layers.Conv2D(6, 3, activation="relu")(inputs)))
outputs = layers.Activation("softmax", dtype="float32")(layers.Dense(4)(x))
model = keras.Model(inputs, outputs)
model.compile(
    loss="sparse_categorical_crossentropy", optimizer=keras.optimizers.SGD(0.05), metrics=["accuracy"]
)
model.fit(images, labels, batch_size=32, epochs=2, validation_split=0.2)
