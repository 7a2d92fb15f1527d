"""A queue of keys by scatter_nd_update and a momentum encoder: after public MoCo in TensorFlow."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

x = np.random.default_rng(34).normal(size=(160, 10)).astype("float32")


def encoder():
    return keras.Sequential([keras.Input((10,)), layers.Dense(12, "relu"), layers.Dense(6)])


class MoCo(keras.Model):
    def __init__(self, size=64):
        super().__init__()
        self.query, self.key = encoder(), encoder()
        self.key.trainable = False
        self.queue = self.add_weight(
            shape=(size, 6), initializer="random_normal", trainable=False, name="queue"
        )
        self.tracker = keras.metrics.Mean(name="loss")

    def call(self, x):
        return self.query(x)

    def train_step(self, x):
        k = tf.math.l2_normalize(self.key(x * 0.9), axis=1)
        with tf.GradientTape() as tape:
            q = tf.math.l2_normalize(self.query(x), axis=1)
            near = tf.reduce_sum(q * k, axis=1, keepdims=True)
            far = tf.matmul(
                q, tf.math.l2_normalize(tf.convert_to_tensor(self.queue), axis=1), transpose_b=True
            )
            logits = tf.concat([near, far], axis=1) / 0.5
            loss = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(tf.zeros(tf.shape(x)[:1], tf.int32), logits)
            )
        weights = self.query.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        for mine, other in zip(self.key.variables, self.query.variables):
            mine.assign(0.9 * mine + 0.1 * tf.convert_to_tensor(other))
        mean = tf.reduce_mean(k, axis=0, keepdims=True)
        self.queue.assign(tf.concat([tf.convert_to_tensor(self.queue)[1:], mean], axis=0))
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}


model = MoCo()
model.compile(optimizer=keras.optimizers.SGD(0.05, momentum=0.9))
model.fit(x, batch_size=32, epochs=2)
