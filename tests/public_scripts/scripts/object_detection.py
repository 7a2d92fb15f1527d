"""Anchors with a focal loss and a box loss, both divided by the positives of the batch: after keras.io's RetinaNet."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

rng = np.random.default_rng(7)
images = rng.random((128, 16, 16, 3)).astype("float32")
classes = rng.integers(-2, 3, (128, 16, 1)).astype("float32")
targets = np.concatenate([rng.normal(size=(128, 16, 4)), classes], -1).astype("float32")


class RetinaNetLoss(keras.losses.Loss):
    def __init__(self, num_classes=3, alpha=0.25, gamma=2.0, delta=1.0):
        super().__init__(reduction="sum_over_batch_size", name="RetinaNetLoss")
        self.num_classes, self.alpha, self.gamma, self.delta = num_classes, alpha, gamma, delta

    def call(self, y_true, y_pred):
        box_labels, box = y_true[:, :, :4], y_pred[:, :, :4]
        labels = tf.one_hot(tf.cast(y_true[:, :, 4], tf.int32), depth=self.num_classes, dtype=tf.float32)
        positive = tf.cast(tf.greater(y_true[:, :, 4], -1.0), tf.float32)
        ignored = tf.cast(tf.equal(y_true[:, :, 4], -2.0), tf.float32)
        entropy = tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=y_pred[:, :, 4:])
        probs = tf.nn.sigmoid(y_pred[:, :, 4:])
        alpha = tf.where(tf.equal(labels, 1.0), self.alpha, 1.0 - self.alpha)
        pt = tf.where(tf.equal(labels, 1.0), probs, 1 - probs)
        clf = tf.reduce_sum(alpha * tf.pow(1.0 - pt, self.gamma) * entropy, axis=-1)
        difference = tf.abs(box_labels - box)
        smooth = tf.where(tf.less(difference, self.delta), 0.5 * difference**2, difference - 0.5)
        clf = tf.where(tf.equal(ignored, 1.0), 0.0, clf)
        smooth = tf.where(tf.equal(positive, 1.0), tf.reduce_sum(smooth, axis=-1), 0.0)
        normalizer = tf.reduce_sum(positive, axis=-1)
        clf = tf.math.divide_no_nan(tf.reduce_sum(clf, axis=-1), normalizer)
        return clf + tf.math.divide_no_nan(tf.reduce_sum(smooth, axis=-1), normalizer)


inputs = keras.Input((16, 16, 3))
x = layers.Conv2D(8, 3, 2, "same", activation="relu")(inputs)
x = layers.Conv2D(12, 3, 2, "same", activation="relu")(x)
boxes = layers.Reshape((-1, 4))(layers.Conv2D(4, 3, padding="same")(x))
scores = layers.Reshape((-1, 3))(layers.Conv2D(3, 3, padding="same")(x))
model = keras.Model(inputs, layers.Concatenate(axis=-1)([boxes, scores]))
schedule = keras.optimizers.schedules.PiecewiseConstantDecay([2, 5], [0.01, 0.005, 0.001])
model.compile(loss=RetinaNetLoss(), optimizer=keras.optimizers.SGD(schedule, momentum=0.9))
model.fit(
    images,
    targets,
    batch_size=16,
    epochs=2,
    callbacks=[keras.callbacks.ModelCheckpoint("weights_{epoch}.weights.h5", save_weights_only=True)],
)
