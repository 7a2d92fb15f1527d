"""Two towers with a softmax over the candidates of the batch: after TensorFlow Recommenders' retrieval tutorial."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

rng = np.random.default_rng(22)
users, items = rng.integers(0, 25, 192), rng.integers(0, 40, 192)


class Retrieval(keras.Model):
    def __init__(self):
        super().__init__()
        self.query = keras.Sequential(
            [keras.Input((), dtype="int32"), layers.Embedding(25, 8), layers.Dense(8)]
        )
        self.candidate = keras.Sequential(
            [keras.Input((), dtype="int32"), layers.Embedding(40, 8), layers.Dense(8)]
        )
        self.top = keras.metrics.Mean(name="top_5")

    def call(self, inputs):
        return self.query(inputs["user"])

    def train_step(self, inputs):
        with tf.GradientTape() as tape:
            scores = tf.matmul(self.query(inputs["user"]), self.candidate(inputs["item"]), transpose_b=True)
            same = tf.equal(inputs["item"][:, None], inputs["item"][None, :])
            own = tf.eye(tf.shape(scores)[0])
            scores = tf.where(tf.logical_and(same, own < 0.5), -1e9, scores)
            loss = tf.reduce_sum(tf.nn.softmax_cross_entropy_with_logits(labels=own, logits=scores))
        self.optimizer.apply_gradients(
            zip(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        )
        self.top.update_state(tf.math.in_top_k(tf.range(tf.shape(scores)[0]), scores, 5))
        return {"loss": loss, "top_5": self.top.result()}


model = Retrieval()
model.compile(optimizer=keras.optimizers.Adagrad(0.1))
model.fit(
    tf.data.Dataset.from_tensor_slices({"user": users, "item": items}).shuffle(192, seed=1).batch(32).cache(),
    epochs=2,
)
