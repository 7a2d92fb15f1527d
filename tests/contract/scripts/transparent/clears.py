"""Two models, and `clear_session` between them, as many scripts have it."""

import sys

import keras
import numpy as np
import tensorflow as tf

rng = np.random.default_rng(5)
x = rng.normal(size=(128, 6)).astype("float32")
y = (x @ rng.normal(size=(6, 1))).astype("float32")
losses, weights = [], []
for seed in (3, 4):
    keras.backend.clear_session()
    keras.utils.set_random_seed(seed)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01), "mse")
    losses += model.fit(x, y, batch_size=32, epochs=2, shuffle=False, verbose=0).history["loss"]
    weights += [sum(float(np.abs(w).sum()) for w in model.get_weights())]
    print("replicas", tf.distribute.get_strategy().num_replicas_in_sync, file=sys.stderr)
print("losses", *(f"{loss:.6f}" for loss in losses))
print("weights", *(f"{each:.5f}" for each in weights))
