"""A supervised contrastive loss, then a classifier: after keras.io's supervised contrastive learning."""

import keras
import numpy as np
from keras import layers, ops

x = np.random.default_rng(0).normal(size=(200, 10)).astype("float32")
y = (x[:, :3].sum(1) > 0).astype("int32") + (x[:, 3] > 0.5)


class SupervisedContrastive(keras.losses.Loss):
    def __init__(self, temperature=0.5, **kwargs):
        super().__init__(**kwargs)
        self.temperature = temperature

    def call(self, labels, features):
        features = ops.normalize(features, axis=1)
        logits = ops.divide(ops.matmul(features, ops.transpose(features)), self.temperature)
        labels = ops.reshape(labels, (-1, 1))
        same = ops.cast(ops.equal(labels, ops.transpose(labels)), "float32")
        same = same / ops.sum(same, axis=1, keepdims=True)
        return ops.categorical_crossentropy(same, logits, from_logits=True)


encoder = keras.Sequential([keras.Input((10,)), layers.Dense(16, "relu"), layers.Dense(8)])
encoder.compile(keras.optimizers.Adam(0.002), SupervisedContrastive())
encoder.fit(x, y, batch_size=40, epochs=2)
encoder.trainable = False
model = keras.Sequential([keras.Input((10,)), encoder, layers.Dense(3, "softmax")])
model.compile("adam", "sparse_categorical_crossentropy", metrics=["sparse_categorical_accuracy"])
model.fit(x, y, batch_size=40, epochs=2)
