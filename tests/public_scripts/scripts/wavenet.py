"""Dilated causal convolutions with gates, by a PyDataset that makes windows: after public WaveNet forecasters."""

import keras
import numpy as np
from keras import layers

series = np.sin(np.arange(600) / 7).astype("float32") + np.random.default_rng(11).normal(0, 0.1, 600).astype(
    "float32"
)


class Windows(keras.utils.PyDataset):
    def __init__(self, batch_size=32):
        super().__init__()
        self.batch_size = batch_size

    def __len__(self):
        return 5

    def __getitem__(self, index):
        begins = np.arange(self.batch_size) * 3 + index * 20
        return np.stack([series[b : b + 24, None] for b in begins]), np.stack(
            [series[b + 1 : b + 25, None] for b in begins]
        )


inputs = keras.Input((24, 1))
x, skips = layers.Conv1D(8, 1)(inputs), []
for rate in (1, 2, 4):
    gated = layers.Multiply()(
        [
            layers.Conv1D(8, 2, dilation_rate=rate, padding="causal", activation=a)(x)
            for a in ("tanh", "sigmoid")
        ]
    )
    skips.append(layers.Conv1D(8, 1)(gated))
    x = layers.Add()([x, skips[-1]])
model = keras.Model(inputs, layers.Conv1D(1, 1)(layers.Activation("relu")(layers.Add()(skips))))
model.compile(keras.optimizers.Adam(0.002, clipnorm=1.0), keras.losses.Huber(), metrics=["mae"])
model.fit(Windows(), epochs=2, shuffle=False)
