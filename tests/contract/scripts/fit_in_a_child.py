"""Starts the Python that trains: `model.fit` of Keras 3 under MultiWorkerMirroredStrategy, in a child of the task."""

import subprocess
import sys

if sys.argv[1:] != ["here"]:
    sys.exit(subprocess.run([sys.executable, __file__, "here"], check=False).returncode)

import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()

import keras  # noqa: E402
import numpy as np  # noqa: E402

keras.utils.set_random_seed(3)
x = np.random.default_rng(0).normal(size=(32, 6)).astype("float32")
with strategy.scope():
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
loss = model.fit(x, x.sum(1), batch_size=16, epochs=1, verbose=0).history["loss"]
print("trained", [round(float(one), 5) for one in loss], flush=True)
