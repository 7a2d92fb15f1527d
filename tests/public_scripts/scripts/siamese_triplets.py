"""A siamese model with a distance layer, a margin and a train_step: after keras.io's siamese network with triplets."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

rng = np.random.default_rng(27)
anchors, positives, negatives = (rng.random((128, 10, 10, 1)).astype("float32") for _ in range(3))
embedding = keras.Sequential(
    [keras.Input((10, 10, 1)), layers.Conv2D(6, 3, activation="relu"), layers.Flatten(), layers.Dense(8)]
)


class DistanceLayer(layers.Layer):
    def call(self, anchor, positive, negative):
        return ops.sum(tf.square(anchor - positive), -1), ops.sum(tf.square(anchor - negative), -1)


class SiameseModel(keras.Model):
    def __init__(self, network, margin=0.5):
        super().__init__()
        self.network, self.margin, self.loss_tracker = network, margin, keras.metrics.Mean(name="loss")
        self.distance = DistanceLayer()

    def call(self, inputs):
        return self.distance(*(self.network(each) for each in inputs))

    def _compute_loss(self, data):
        near, far = self(data)
        return tf.maximum(near - far + self.margin, 0.0)

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = self._compute_loss(data)
        gradients = tape.gradient(loss, self.network.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.network.trainable_weights))
        self.loss_tracker.update_state(loss)
        return {"loss": self.loss_tracker.result()}

    def test_step(self, data):
        self.loss_tracker.update_state(self._compute_loss(data))
        return {"loss": self.loss_tracker.result()}

    @property
    def metrics(self):
        return [self.loss_tracker]


data = tf.data.Dataset.zip(
    tuple(tf.data.Dataset.from_tensor_slices(each) for each in (anchors, positives, negatives))
)
model = SiameseModel(embedding)
model.compile(optimizer=keras.optimizers.Adam(0.0001))
model.fit(data.take(96).shuffle(96, seed=1).batch(16), epochs=2, validation_data=data.skip(96).batch(16))
