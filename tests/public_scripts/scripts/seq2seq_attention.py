"""An encoder and a decoder with attention under masks, trained by teacher forcing: after TensorFlow's NMT tutorial."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

rng = np.random.default_rng(4)
source = rng.integers(1, 30, (160, 8))
source[np.arange(8)[None] >= rng.integers(3, 9, 160)[:, None]] = 0
target = np.where(source > 0, (source[:, ::-1] + 3) % 30, 0)
target_in, target_out = np.pad(target[:, :-1], ((0, 0), (1, 0)), constant_values=1), target


def masked_loss(y_true, y_pred):
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")(y_true, y_pred)
    mask = tf.cast(y_true != 0, loss.dtype)
    return tf.reduce_sum(loss * mask) / tf.reduce_sum(mask)


def masked_acc(y_true, y_pred):
    match = tf.cast(y_true == tf.cast(tf.argmax(y_pred, axis=-1), y_true.dtype), tf.float32)
    mask = tf.cast(y_true != 0, tf.float32)
    return tf.reduce_sum(match * mask) / tf.reduce_sum(mask)


context, words = keras.Input((8,), dtype="int64"), keras.Input((8,), dtype="int64")
encoded = layers.Bidirectional(layers.GRU(12, return_sequences=True), merge_mode="sum")(
    layers.Embedding(30, 12, mask_zero=True)(context)
)
decoded, _ = layers.GRU(12, return_sequences=True, return_state=True)(
    layers.Embedding(30, 12, mask_zero=True)(words)
)
attended = layers.MultiHeadAttention(2, 6)(query=decoded, value=encoded)
out = layers.Dense(30)(layers.LayerNormalization()(layers.Add()([decoded, attended])))
model = keras.Model([context, words], out)
model.compile(optimizer="adam", loss=masked_loss, metrics=[masked_acc, masked_loss])
data = tf.data.Dataset.from_tensor_slices(((source, target_in), target_out)).shuffle(160, seed=1).batch(32)
model.fit(
    data.repeat(),
    epochs=2,
    steps_per_epoch=4,
    callbacks=[keras.callbacks.EarlyStopping(monitor="loss", patience=3)],
)
