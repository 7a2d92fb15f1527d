"""Cox's partial likelihood over the patients of a batch, with a concordance: after DeepSurv in Keras."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

rng = np.random.default_rng(30)
x = rng.normal(size=(192, 6)).astype("float32")
time = rng.exponential(np.exp(-x[:, 0])).astype("float32")
y = np.stack([time, rng.random(192) < 0.7], 1).astype("float32")


def neg_log_likelihood(y_true, risk):
    time, event = y_true[:, 0], y_true[:, 1]
    order = tf.argsort(time, direction="DESCENDING")
    event, risk = tf.gather(event, order), tf.gather(risk[:, 0], order)
    return -tf.reduce_sum((risk - tf.math.cumulative_logsumexp(risk)) * event) / tf.reduce_sum(event)


def concordance(y_true, risk):
    time, event = y_true[:, 0], y_true[:, 1]
    pairs = tf.cast(time[:, None] < time[None], tf.float32) * event[:, None]
    return tf.reduce_sum(pairs * tf.cast(risk > tf.transpose(risk), tf.float32)) / (
        tf.reduce_sum(pairs) + 1e-6
    )


model = keras.Sequential([keras.Input((6,)), layers.Dense(12, "selu"), layers.Dense(1, use_bias=False)])
model.compile(
    keras.optimizers.SGD(0.01, nesterov=True, momentum=0.9), neg_log_likelihood, metrics=[concordance]
)
model.fit(x, y, batch_size=32, epochs=2, validation_split=0.25)
