"""Cross-correlations of two views over the batch, which are to be the identity: after keras.io's Barlow Twins."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

x = np.random.default_rng(3).normal(size=(192, 10)).astype("float32")


class BarlowLoss(keras.losses.Loss):
    def __init__(self, amount=5e-3):
        super().__init__()
        self.amount = amount

    def call(self, a, b):
        count = tf.cast(tf.shape(a)[0], a.dtype)
        a = (a - tf.reduce_mean(a, axis=0)) / (tf.math.reduce_std(a, axis=0) + 1e-3)
        b = (b - tf.reduce_mean(b, axis=0)) / (tf.math.reduce_std(b, axis=0) + 1e-3)
        crossed = tf.matmul(a, b, transpose_a=True) / count
        on = tf.reduce_sum(tf.square(1 - tf.linalg.diag_part(crossed)))
        return on + self.amount * (
            tf.reduce_sum(tf.square(crossed)) - tf.reduce_sum(tf.square(tf.linalg.diag_part(crossed)))
        )


class BarlowTwins(keras.Model):
    def __init__(self):
        super().__init__()
        self.encoder = keras.Sequential(
            [keras.Input((10,)), layers.Dense(16, "relu"), layers.Dense(6, use_bias=False)]
        )
        self.tracker = keras.metrics.Mean(name="loss")

    def call(self, x):
        return self.encoder(x)

    def train_step(self, batch):
        one, two = batch
        with tf.GradientTape() as tape:
            loss = self.loss_of(self.encoder(one, training=True), self.encoder(two, training=True))
        gradients = tape.gradient(loss, self.encoder.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.encoder.trainable_variables))
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}


model = BarlowTwins()
model.loss_of = BarlowLoss()
model.compile(optimizer=keras.optimizers.Adam(1e-3))
data = (
    tf.data.Dataset.from_tensor_slices((x, x[:, ::-1] * 0.1 + x))
    .batch(32, drop_remainder=True)
    .prefetch(tf.data.AUTOTUNE)
)
model.fit(data, epochs=2)
