"""A GAN with orchestrator.keras.Checkpoint: python gan.py keras|tf_keras [call] [inner] [legacy] [killed].

It counts how often its step is traced: a restart must not take longer than the first start.
"""

import importlib
import json
import os
import sys

import numpy as np
import tensorflow as tf

from orchestrator.keras import Checkpoint

keras = importlib.import_module(sys.argv[1])
keras.utils.set_random_seed(4)
data = np.random.default_rng(0).normal(size=(96, 6)).astype("float32")
adam = keras.optimizers.legacy.Adam if "legacy" in sys.argv else keras.optimizers.Adam


class GAN(keras.Model):
    """Its optimizers are its own, and are built when the first step is traced."""

    def __init__(self):
        super().__init__()
        self.critic = keras.Sequential(
            [keras.Input((6,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)]
        )
        self.maker = keras.Sequential(
            [keras.Input((3,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(6)]
        )
        self.traced = 0

    def train_step(self, real):
        self.traced += 1
        noise = tf.reverse(real, axis=[1])[:, :3]
        self.minimize(
            self.d_optimizer, self.critic, lambda: self.judged(self.maker(noise)) - self.judged(real)
        )
        self.minimize(self.g_optimizer, self.maker, lambda: -self.judged(self.maker(noise)))
        return {"judged": self.judged(real)}

    def judged(self, given):
        return tf.reduce_mean(tf.tanh(self.critic(given)))

    def minimize(self, optimizer, model, loss):
        with tf.GradientTape() as tape:
            value = loss()
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(value, weights), weights))


class WithCall(GAN):
    def call(self, given):
        return self.critic(given)


class Inner(GAN):
    """Its optimizers are those that its two models were compiled with."""

    d_optimizer = property(lambda self: self.critic.optimizer)
    g_optimizer = property(lambda self: self.maker.optimizer)


class Killed(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if "killed" in sys.argv and self.model.g_optimizer.iterations.numpy() == 13:
            os._exit(9)


class Halved(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.model.d_optimizer.learning_rate.assign(0.01 / (1 + epoch))


model = (WithCall if "call" in sys.argv else Inner if "inner" in sys.argv else GAN)()
model.compile()
if "inner" in sys.argv:
    model.critic.compile(adam(0.01))
    model.maker.compile(adam(0.02))
else:
    model.d_optimizer, model.g_optimizer = adam(0.01), adam(0.02)
model.fit(data, batch_size=12, epochs=3, verbose=0, callbacks=[Halved(), Checkpoint(), Killed()])
print(
    json.dumps(
        {
            "weights": [float(np.abs(weight).sum()) for weight in model.get_weights()],
            "updates": [int(each.iterations.numpy()) for each in (model.d_optimizer, model.g_optimizer)],
            "traced": model.traced,
        }
    )
)
