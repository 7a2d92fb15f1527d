"""Contrastive pretraining with NT-Xent in a train_step, then a linear probe: after keras.io's semisupervised SimCLR."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

images = np.random.default_rng(0).random((200, 12, 12, 1)).astype("float32")
labels = (images[:, :6].mean((1, 2, 3)) > images[:, 6:].mean((1, 2, 3))).astype("int32")


class Contrastive(keras.Model):
    def __init__(self, temperature=0.1):
        super().__init__()
        self.temperature = temperature
        self.encoder = keras.Sequential(
            [
                keras.Input((12, 12, 1)),
                layers.Conv2D(8, 3, 2, "same", activation="relu"),
                layers.Flatten(),
                layers.Dense(16),
            ]
        )
        self.head = keras.Sequential([keras.Input((16,)), layers.Dense(16, "relu"), layers.Dense(16)])
        self.tracker = keras.metrics.Mean(name="c_loss")
        self.accuracy = keras.metrics.SparseCategoricalAccuracy(name="c_acc")

    @property
    def metrics(self):
        return [self.tracker, self.accuracy]

    def call(self, x):
        return self.encoder(x)

    def train_step(self, data):
        first, second = data[:, :, ::-1] * 0.9, data + 0.1 * data[:, ::-1]
        with tf.GradientTape() as tape:
            a = ops.normalize(self.head(self.encoder(first)), axis=1)
            b = ops.normalize(self.head(self.encoder(second)), axis=1)
            similarities = ops.matmul(a, ops.transpose(b)) / self.temperature
            own = tf.range(tf.shape(a)[0])
            one = keras.losses.sparse_categorical_crossentropy(own, similarities, from_logits=True)
            two = keras.losses.sparse_categorical_crossentropy(
                own, ops.transpose(similarities), from_logits=True
            )
            loss = ops.mean(one + two) / 2
        weights = self.encoder.trainable_weights + self.head.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        self.tracker.update_state(loss)
        self.accuracy.update_state(own, similarities)
        return {m.name: m.result() for m in self.metrics}


model = Contrastive()
model.compile(optimizer=keras.optimizers.Adam(1e-3))
model.fit(images, batch_size=32, epochs=2, shuffle=False)
model.encoder.trainable = False
probe = keras.Sequential([keras.Input((12, 12, 1)), model.encoder, layers.Dense(2)])
probe.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
probe.fit(images, labels, batch_size=32, epochs=2, shuffle=False)
