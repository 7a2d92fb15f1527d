"""A router whose load-balancing loss is a product of two means over the batch: after keras.io's switch transformer."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

x = np.random.default_rng(24).normal(size=(160, 8)).astype("float32")
y = (x[:, :2].prod(1) > 0).astype("float32")


class Experts(layers.Layer):
    def __init__(self, count=4, units=8):
        super().__init__()
        self.count = count
        self.route = layers.Dense(count, activation="softmax")
        self.experts = [layers.Dense(units, "relu") for _ in range(count)]

    def call(self, x):
        probabilities = self.route(x)
        chosen = tf.one_hot(tf.argmax(probabilities, axis=-1), self.count)
        density, proxy = tf.reduce_mean(chosen, axis=0), tf.reduce_mean(probabilities, axis=0)
        self.add_loss(0.1 * tf.reduce_mean(density * proxy) * self.count**2)
        made = ops.stack([expert(x) for expert in self.experts], axis=1)
        return tf.reduce_sum(made * (chosen * probabilities)[:, :, None], axis=1)


inputs = keras.Input((8,))
model = keras.Model(inputs, layers.Dense(1, "sigmoid")(Experts()(inputs)))
model.compile(keras.optimizers.SGD(0.1), "binary_crossentropy", metrics=["accuracy"])
model.fit(x, y, batch_size=32, epochs=2)
