"""A grid of boxes, objectness and classes with sums over cells that hold an object: after public YOLO v1."""

import keras
import numpy as np
import tensorflow as tf
from keras import backend as K
from keras import layers

rng = np.random.default_rng(8)
images = rng.random((128, 16, 16, 3)).astype("float32")
grid = np.concatenate([(rng.random((128, 4, 4, 1)) < 0.2), rng.random((128, 4, 4, 7))], -1).astype("float32")


def yolo_loss(y_true, y_pred):
    has = y_true[..., :1]
    xy = tf.reduce_sum(has * tf.square(y_true[..., 1:3] - tf.sigmoid(y_pred[..., 1:3])))
    wh = tf.reduce_sum(
        has * tf.square(tf.sqrt(y_true[..., 3:5] + K.epsilon()) - tf.sqrt(tf.nn.softplus(y_pred[..., 3:5])))
    )
    confidence = tf.reduce_sum((has + 0.5 * (1 - has)) * tf.square(has - tf.sigmoid(y_pred[..., :1])))
    classes = tf.reduce_sum(has * tf.square(y_true[..., 5:] - tf.nn.softmax(y_pred[..., 5:])))
    return (5 * xy + 5 * wh + confidence + classes) / tf.cast(tf.shape(y_true)[0], tf.float32)


def mean_iou(y_true, y_pred):
    a, b = y_true[..., 3] * y_true[..., 4], tf.nn.softplus(y_pred[..., 3]) * tf.nn.softplus(y_pred[..., 4])
    both = tf.minimum(y_true[..., 3], tf.nn.softplus(y_pred[..., 3])) * tf.minimum(
        y_true[..., 4], tf.nn.softplus(y_pred[..., 4])
    )
    return tf.reduce_sum(y_true[..., 0] * both / (a + b - both + 1e-6)) / (
        tf.reduce_sum(y_true[..., 0]) + 1e-6
    )


model = keras.Sequential(
    [
        keras.Input((16, 16, 3)),
        layers.Conv2D(8, 3, 2, "same"),
        layers.LeakyReLU(negative_slope=0.1),
        layers.Conv2D(16, 3, 2, "same"),
        layers.LeakyReLU(negative_slope=0.1),
        layers.Conv2D(8, 1),
    ]
)
model.compile(keras.optimizers.Adam(1e-3), yolo_loss, metrics=[mean_iou])
model.fit(images, grid, batch_size=16, epochs=2, validation_split=0.125)
