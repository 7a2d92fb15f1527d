"""A GAN with labels whose step applies two optimizers and draws its noise: after keras.io's conditional GAN."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

rng = np.random.default_rng(6)
images, labels = (
    rng.random((160, 8, 8, 1)).astype("float32"),
    np.eye(4, dtype="float32")[rng.integers(0, 4, 160)],
)
critic = keras.Sequential(
    [
        keras.Input((8, 8, 5)),
        layers.Conv2D(8, 3, 2, "same"),
        layers.LeakyReLU(negative_slope=0.2),
        layers.GlobalMaxPooling2D(),
        layers.Dense(1),
    ]
)
maker = keras.Sequential(
    [
        keras.Input((12,)),
        layers.Dense(4 * 4 * 4),
        layers.LeakyReLU(negative_slope=0.2),
        layers.Reshape((4, 4, 4)),
        layers.Conv2DTranspose(1, 4, 2, "same", activation="sigmoid"),
    ]
)


class ConditionalGAN(keras.Model):
    def __init__(self, discriminator, generator, latent_dim):
        super().__init__()
        self.discriminator, self.generator, self.latent_dim = discriminator, generator, latent_dim
        self.seed_generator = keras.random.SeedGenerator(1337)
        self.gen_loss_tracker = keras.metrics.Mean(name="generator_loss")
        self.disc_loss_tracker = keras.metrics.Mean(name="discriminator_loss")

    @property
    def metrics(self):
        return [self.gen_loss_tracker, self.disc_loss_tracker]

    def compile(self, d_optimizer, g_optimizer, loss_fn):
        super().compile()
        self.d_optimizer, self.g_optimizer, self.loss_fn = d_optimizer, g_optimizer, loss_fn

    def train_step(self, data):
        real, one_hot = data
        planes = ops.reshape(ops.repeat(one_hot[:, :, None, None], repeats=[64]), (-1, 8, 8, 4))
        count = ops.shape(real)[0]
        latent = keras.random.normal(shape=(count, self.latent_dim), seed=self.seed_generator)
        made = self.generator(ops.concatenate([latent, one_hot], axis=1))
        both = ops.concatenate(
            [ops.concatenate([made, planes], -1), ops.concatenate([real, planes], -1)], axis=0
        )
        truth = ops.concatenate([ops.ones((count, 1)), ops.zeros((count, 1))], axis=0)
        with tf.GradientTape() as tape:
            d_loss = self.loss_fn(truth, self.discriminator(both))
        grads = tape.gradient(d_loss, self.discriminator.trainable_weights)
        self.d_optimizer.apply_gradients(zip(grads, self.discriminator.trainable_weights))
        latent = keras.random.normal(shape=(count, self.latent_dim), seed=self.seed_generator)
        with tf.GradientTape() as tape:
            fake = ops.concatenate([self.generator(ops.concatenate([latent, one_hot], axis=1)), planes], -1)
            g_loss = self.loss_fn(ops.zeros((count, 1)), self.discriminator(fake))
        grads = tape.gradient(g_loss, self.generator.trainable_weights)
        self.g_optimizer.apply_gradients(zip(grads, self.generator.trainable_weights))
        self.gen_loss_tracker.update_state(g_loss)
        self.disc_loss_tracker.update_state(d_loss)
        return {"g_loss": self.gen_loss_tracker.result(), "d_loss": self.disc_loss_tracker.result()}


model = ConditionalGAN(critic, maker, latent_dim=8)
model.compile(
    keras.optimizers.Adam(3e-4),
    keras.optimizers.Adam(3e-4),
    keras.losses.BinaryCrossentropy(from_logits=True),
)
model.fit(tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(160, seed=2).batch(32), epochs=2)
