"""A custom activation by tf.custom_gradient, spectral normalization and weight constraints: after keras.io's guides."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

x = np.random.default_rng(36).normal(size=(160, 8)).astype("float32")
y = (x[:, :1] * x[:, 1:2] > 0).astype("float32")


@tf.custom_gradient
def swish(x):
    sigmoid = tf.sigmoid(x)

    def grad(upstream):
        return upstream * (sigmoid + x * sigmoid * (1 - sigmoid))

    return x * sigmoid, grad


inputs = keras.Input((8,))
hidden = layers.Lambda(swish, output_shape=(12,))(
    layers.Dense(12, kernel_constraint=keras.constraints.MaxNorm(2.0))(inputs)
)
hidden = layers.SpectralNormalization(layers.Dense(8, activation="relu"))(hidden)
model = keras.Model(inputs, layers.Dense(1, "sigmoid")(hidden))
model.compile(
    keras.optimizers.SGD(0.1), keras.losses.BinaryCrossentropy(label_smoothing=0.1), metrics=["accuracy"]
)
model.fit(x, y, batch_size=32, epochs=2, shuffle=False)
