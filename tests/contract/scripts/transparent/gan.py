"""A GAN: two optimizers of its own, no `call`, noise without a seed; and two calls of fit."""

import json

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(4)
data = np.random.default_rng(0).normal(size=(96, 6)).astype("float32")


class GAN(keras.Model):
    def __init__(self):
        super().__init__()
        layers = keras.layers
        self.critic = keras.Sequential(
            [keras.Input((6,)), layers.Dense(8, "relu"), layers.Dropout(0.2), layers.Dense(1)]
        )
        self.maker = keras.Sequential([keras.Input((3,)), layers.Dense(8, "relu"), layers.Dense(6)])
        self.made = keras.metrics.Mean(name="made")

    def compile(self, d_optimizer, g_optimizer):
        super().compile()
        self.d_optimizer, self.g_optimizer = d_optimizer, g_optimizer
        self.bce = keras.losses.BinaryCrossentropy(from_logits=True)

    @property
    def metrics(self):
        return [self.made]

    def train_step(self, real):
        count = tf.shape(real)[0]
        fake = self.maker(tf.random.normal((count, 3)))
        truth = tf.concat([tf.ones((count, 1)), tf.zeros((count, 1))], axis=0)
        truth += 0.05 * keras.random.uniform(tf.shape(truth))
        with tf.GradientTape() as tape:
            loss = self.bce(truth, self.critic(tf.concat([fake, real], axis=0), training=True))
        weights = self.critic.trainable_weights
        self.d_optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        with tf.GradientTape() as tape:
            made = self.bce(tf.zeros((count, 1)), self.critic(self.maker(tf.random.normal((count, 3)))))
        weights = self.maker.trainable_weights
        self.g_optimizer.apply_gradients(zip(tape.gradient(made, weights), weights))
        self.made.update_state(made)
        return {"critic": loss, "made": self.made.result()}


model = GAN()
model.compile(keras.optimizers.Adam(0.01), keras.optimizers.Adam(0.02))
first = model.fit(data, batch_size=12, epochs=2, verbose=0)
second = model.fit(data, batch_size=12, epochs=4, verbose=0)
print(
    json.dumps(
        {
            "weights": [float(np.abs(weight).sum()) for weight in model.get_weights()],
            "epochs": first.history["made"] + second.history["made"],
            "updates": [int(model.d_optimizer.iterations), int(model.g_optimizer.iterations)],
        }
    )
)
