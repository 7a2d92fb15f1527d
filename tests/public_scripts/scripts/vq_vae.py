"""A vector quantizer with a straight-through gradient and commitment losses: after keras.io's VQ-VAE."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

images = np.random.default_rng(5).random((160, 8, 8, 1)).astype("float32")
variance = float(np.var(images))


class VectorQuantizer(layers.Layer):
    def __init__(self, count, dim, beta=0.25, **kwargs):
        super().__init__(**kwargs)
        self.count, self.dim, self.beta = count, dim, beta
        self.embeddings = self.add_weight(
            shape=(dim, count), initializer="random_uniform", trainable=True, name="codes"
        )

    def call(self, x):
        flat = tf.reshape(x, [-1, self.dim])
        similarity = tf.matmul(flat, self.embeddings)
        distances = (
            tf.reduce_sum(flat**2, axis=1, keepdims=True)
            + tf.reduce_sum(self.embeddings**2, axis=0)
            - 2 * similarity
        )
        codes = tf.one_hot(tf.argmin(distances, axis=1), self.count)
        quantized = tf.reshape(tf.matmul(codes, self.embeddings, transpose_b=True), tf.shape(x))
        self.add_loss(self.beta * tf.reduce_mean((tf.stop_gradient(quantized) - x) ** 2))
        self.add_loss(tf.reduce_mean((quantized - tf.stop_gradient(x)) ** 2))
        return x + tf.stop_gradient(quantized - x)


class VQVAETrainer(keras.Model):
    def __init__(self):
        super().__init__()
        inputs = keras.Input((8, 8, 1))
        x = layers.Conv2D(8, 3, 2, "same", activation="relu")(inputs)
        x = VectorQuantizer(16, 4)(layers.Conv2D(4, 1)(x))
        x = layers.Conv2DTranspose(8, 3, 2, "same", activation="relu")(x)
        self.vqvae = keras.Model(inputs, layers.Conv2DTranspose(1, 3, padding="same")(x))
        self.total = keras.metrics.Mean(name="loss")
        self.reconstruction = keras.metrics.Mean(name="reconstruction_loss")

    @property
    def metrics(self):
        return [self.total, self.reconstruction]

    def train_step(self, x):
        with tf.GradientTape() as tape:
            made = self.vqvae(x)
            reconstruction = tf.reduce_mean((x - made) ** 2) / variance
            total = reconstruction + sum(self.vqvae.losses)
        grads = tape.gradient(total, self.vqvae.trainable_variables)
        self.optimizer.apply_gradients(zip(grads, self.vqvae.trainable_variables))
        self.total.update_state(total)
        self.reconstruction.update_state(reconstruction)
        return {"loss": self.total.result(), "reconstruction_loss": self.reconstruction.result()}


model = VQVAETrainer()
model.compile(optimizer=keras.optimizers.Adam(0.003))
model.fit(images, epochs=2, batch_size=32)
