"""Texts through TextVectorization and a bidirectional GRU: after TensorFlow's text classification with an RNN."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

rng = np.random.default_rng(32)
words = np.array(["good", "bad", "fine", "dull", "great", "poor", "film", "plot", "actor", "scene"])
texts = [" ".join(rng.choice(words, rng.integers(4, 12))) for _ in range(160)]
labels = np.array([("good" in t) + ("great" in t) > ("bad" in t) + ("poor" in t) for t in texts]).astype(
    "float32"
)
train = (
    tf.data.Dataset.from_tensor_slices((texts, labels))
    .shuffle(160, seed=2)
    .batch(32)
    .prefetch(tf.data.AUTOTUNE)
)
encoder = layers.TextVectorization(max_tokens=50)
encoder.adapt(train.map(lambda text, label: text))
train = train.map(lambda text, label: (encoder(text), label))
model = keras.Sequential(
    [
        layers.Embedding(len(encoder.get_vocabulary()), 8, mask_zero=True),
        layers.Bidirectional(layers.GRU(6)),
        layers.Dense(8, activation="relu"),
        layers.Dense(1),
    ]
)
model.compile(
    loss=keras.losses.BinaryCrossentropy(from_logits=True),
    optimizer=keras.optimizers.Adam(1e-3),
    metrics=["accuracy"],
)
model.fit(train, epochs=2)
