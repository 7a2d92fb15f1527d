"""Two towers whose captions and images are matched within the batch: after keras.io's dual encoder and CLIP."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

rng = np.random.default_rng(1)
images = rng.normal(size=(160, 12)).astype("float32")
captions = (np.abs(images[:, :6]) * 9).astype("int32") % 30


class DualEncoder(keras.Model):
    def __init__(self, temperature=0.5):
        super().__init__()
        self.text = keras.Sequential(
            [keras.Input((6,)), layers.Embedding(30, 8), layers.GlobalAveragePooling1D(), layers.Dense(8)]
        )
        self.image = keras.Sequential(
            [keras.Input((12,)), layers.Dense(16, "gelu"), layers.Dense(8), layers.LayerNormalization()]
        )
        self.temperature = temperature
        self.tracker = keras.metrics.Mean(name="loss")

    @property
    def metrics(self):
        return [self.tracker]

    def call(self, features):
        return self.text(features["caption"]), self.image(features["image"])

    def compute_own_loss(self, captions, images):
        logits = tf.matmul(captions, images, transpose_b=True) / self.temperature
        image_similarity = tf.matmul(images, images, transpose_b=True)
        caption_similarity = tf.matmul(captions, captions, transpose_b=True)
        targets = keras.activations.softmax((caption_similarity + image_similarity) / (2 * self.temperature))
        one = keras.losses.categorical_crossentropy(targets, logits, from_logits=True)
        two = keras.losses.categorical_crossentropy(
            tf.transpose(targets), tf.transpose(logits), from_logits=True
        )
        return (one + two) / 2

    def train_step(self, features):
        with tf.GradientTape() as tape:
            loss = self.compute_own_loss(*self(features, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}

    def test_step(self, features):
        self.tracker.update_state(self.compute_own_loss(*self(features, training=False)))
        return {"loss": self.tracker.result()}


data = tf.data.Dataset.from_tensor_slices({"image": images, "caption": captions})
model = DualEncoder()
model.compile(optimizer=keras.optimizers.AdamW(0.001, weight_decay=0.001))
stop = keras.callbacks.EarlyStopping(monitor="val_loss", patience=5, restore_best_weights=True)
plateau = keras.callbacks.ReduceLROnPlateau(monitor="val_loss", factor=0.2, patience=3)
model.fit(
    data.take(128).shuffle(128, seed=3).batch(32),
    epochs=2,
    validation_data=data.skip(128).batch(16),
    callbacks=[plateau, stop],
)
