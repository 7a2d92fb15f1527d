"""A fit whose proof finds no memory: what it computes a second time fails as TensorFlow's allocator does.

The argument: which worker it fails on, where there are several.
"""

import json
import os
import sys

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from orchestrator.task.transparent import proof

compared = proof.Proof.compared


def too_large():
    raise MemoryError("OOM when allocating tensor")  # which TensorFlow makes a ResourceExhaustedError


def without_memory(self, *args, **kwargs):
    found = compared(self, *args, **kwargs)
    with tf.control_dependencies([tf.numpy_function(too_large, [], [])]):
        return tf.identity(found)


if not sys.argv[1:] or os.environ["ORCH_TASK"] == sys.argv[1]:
    proof.Proof.compared = without_memory
rng = np.random.default_rng(0)
x = rng.normal(size=(60, 6)).astype("float32")
keras.utils.set_random_seed(3)
model = keras.Sequential([keras.Input((6,)), layers.Dense(5, "tanh"), layers.Dense(1)])
model.compile("adam", "mse")
model.fit(x, x.sum(1, keepdims=True), batch_size=20, shuffle=False, verbose=0)
weights = [float(np.abs(each).sum()) for each in model.get_weights()]
print(json.dumps({"steps": int(model.optimizer.iterations), "weights": weights}), flush=True)
