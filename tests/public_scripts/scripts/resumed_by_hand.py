"""A loop over folds that loads what is there and trains the rest: after notebooks that survive their sessions' end."""

import os

import keras
import numpy as np

x = np.random.default_rng(19).normal(size=(144, 6)).astype("float32")
y = x.sum(1, keepdims=True)
for fold in range(3):
    keras.utils.set_random_seed(fold)
    path = f"fold{fold}.keras"
    if os.path.exists(path):
        model = keras.models.load_model(path)
    else:
        mask = np.arange(144) % 3 != fold
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(6, "relu"), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.02), "mse")
        model.fit(x[mask], y[mask], batch_size=16, epochs=2, verbose=0)
        model.save(path)
    print("RESULT", fold, round(float(model.evaluate(x, y, verbose=0)), 5))
