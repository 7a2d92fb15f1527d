"""An ordinary Keras script for `orch prove`: the kind `equal` trains the same on many replicas, the others part."""

import json
import os
import sys
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np

kind = sys.argv[1]
rng = np.random.default_rng(7)
x = rng.normal(size=(256, 8)).astype("float32")
y = (x.sum(1, keepdims=True) > 0).astype("float32")
inner = {
    "batchnorm": [keras.layers.BatchNormalization()],
    "dropout": [keras.layers.Dropout(0.5, name="forget")],
}.get(kind, [])
initial = keras.initializers.Constant(float(os.getpid())) if kind == "begin" else "glorot_uniform"
model = keras.Sequential(
    [
        keras.Input((8,)),
        keras.layers.Dense(16, "tanh", kernel_initializer=initial),
        *inner,
        keras.layers.Dense(1),
    ]
)


def own_share(y_true: Any, y_pred: Any) -> Any:
    """Return a loss that depends on the number of workers."""
    workers = len(json.loads(os.environ.get("TF_CONFIG", "{}")).get("cluster", {}).get("worker", "1"))
    return keras.ops.mean(keras.ops.square(y_true - y_pred)) / workers


model.compile("adam", own_share if kind == "loss" else "mse")
if kind == "shuffled":  # by what no seed covers
    order = np.random.default_rng(os.getpid()).permutation(len(x))
    x, y = x[order], y[order]
model.fit(x, y, batch_size=32, epochs=3, verbose=0)
