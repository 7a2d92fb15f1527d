"""Nodes of one graph by their numbers, with a sum over neighbours by segments: after keras.io's node classification."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

rng = np.random.default_rng(33)
features = rng.normal(size=(60, 8)).astype("float32")
edges = rng.integers(0, 60, (2, 240))
labels = (features[:, 0] > 0).astype("int32")


class GNN(keras.Model):
    def __init__(self):
        super().__init__()
        self.before, self.message = layers.Dense(12, "gelu"), layers.Dense(12, "gelu")
        self.update, self.logits = layers.Dense(12, "gelu"), layers.Dense(2)

    def call(self, nodes):
        x = self.before(tf.constant(features))
        messages = tf.gather(self.message(x), edges[1])
        together = tf.math.unsorted_segment_mean(messages, edges[0], num_segments=60)
        x = tf.math.l2_normalize(self.update(tf.concat([x, together], axis=1)), axis=-1) + x
        return self.logits(tf.gather(x, tf.reshape(nodes, [-1])))


model = GNN()
model.compile(
    keras.optimizers.Adam(0.01),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
model.fit(np.repeat(np.arange(60), 3), np.repeat(labels, 3), batch_size=30, epochs=2)
