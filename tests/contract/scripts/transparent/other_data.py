"""Reads other examples on each worker, as a list of files without an order would have it."""

import json
import os

import keras
import numpy as np

index = json.loads(os.environ.get("TF_CONFIG", '{"task": {"index": 0}}'))["task"]["index"]
x = np.roll(np.arange(240, dtype="float32").reshape(60, 4), index, axis=0)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(x, x.sum(1), batch_size=20, epochs=1, verbose=0)
print("not reached")
