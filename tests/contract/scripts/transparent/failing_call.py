"""A model with a step of its own, whose `call` fails."""

import keras
import numpy as np
import tensorflow as tf


class Fails(keras.Model):
    def __init__(self):
        super().__init__()
        self.inner = keras.layers.Dense(1)

    def call(self, x):
        return self.inner(x) + tf.reshape(self.no_such_attribute, [1])

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x) - y))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


model = Fails()
model.compile("sgd")
model.fit(np.ones([8, 3], "float32"), np.ones([8, 1], "float32"), verbose=0)
