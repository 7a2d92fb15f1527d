"""Tokens masked beforehand, weights for the masked ones, a train_step of its own: after keras.io's BERT for MLM."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

rng = np.random.default_rng(15)
tokens = rng.integers(2, 40, (160, 10))
chosen = rng.random(tokens.shape) < 0.2
masked, weights = np.where(chosen, 1, tokens), chosen.astype("float32")
loss_fn = keras.losses.SparseCategoricalCrossentropy(reduction=None)
tracker = keras.metrics.Mean(name="loss")


class MaskedLanguageModel(keras.Model):
    def train_step(self, inputs):
        features, labels, sample_weight = inputs
        with tf.GradientTape() as tape:
            predictions = self(features, training=True)
            loss = loss_fn(labels, predictions, sample_weight=sample_weight)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        tracker.update_state(loss, sample_weight=sample_weight)
        return {"loss": tracker.result()}

    @property
    def metrics(self):
        return [tracker]


inputs = layers.Input((10,), dtype="int64")
x = layers.Embedding(40, 16)(inputs) + layers.Embedding(10, 16)(keras.ops.arange(10))
attended = layers.MultiHeadAttention(2, 8)(x, x, x)
x = layers.LayerNormalization(epsilon=1e-6)(x + attended)
x = layers.LayerNormalization(epsilon=1e-6)(x + layers.Dense(16)(layers.Dense(16, "relu")(x)))
model = MaskedLanguageModel(inputs, layers.Dense(40, activation="softmax")(x))
model.compile(optimizer=keras.optimizers.Adam(learning_rate=0.001))
model.fit(
    tf.data.Dataset.from_tensor_slices((masked, tokens, weights)).shuffle(200, seed=1).batch(32), epochs=2
)
