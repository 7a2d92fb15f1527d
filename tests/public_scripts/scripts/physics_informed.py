"""A residual of derivatives by nested tapes beside a loss of data: after public physics-informed networks in Keras."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

t = np.linspace(0, 2, 160).astype("float32")[:, None]
t = t[np.random.default_rng(28).permutation(160)]
network = keras.Sequential(
    [keras.Input((1,)), layers.Dense(12, "tanh"), layers.Dense(12, "tanh"), layers.Dense(1)]
)


class PINN(keras.Model):
    def __init__(self):
        super().__init__()
        self.network, self.tracker = network, keras.metrics.Mean(name="loss")

    def call(self, t):
        return self.network(t)

    def train_step(self, data):
        t, u = data
        with tf.GradientTape() as tape:
            with tf.GradientTape() as outer:
                outer.watch(t)
                with tf.GradientTape() as inner:
                    inner.watch(t)
                    made = self.network(t)
                first = inner.gradient(made, t)
            second = outer.gradient(first, t)
            residual = second + 0.4 * first + 4.0 * made
            loss = tf.reduce_mean(tf.square(residual)) + 10.0 * tf.reduce_mean(tf.square(made - u))
        weights = self.network.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}


model = PINN()
model.compile(optimizer=keras.optimizers.Adam(0.001))
model.fit(t, np.exp(-0.2 * t) * np.cos(2 * t), batch_size=32, epochs=2, shuffle=False)
