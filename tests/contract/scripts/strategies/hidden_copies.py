"""Its sources name a strategy, which it makes nowhere: each worker would train for itself."""

import os

import numpy as np
import tensorflow as tf
from tensorflow import keras

if os.environ.get("DISTRIBUTED"):
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(np.ones((8, 2)), np.ones((8, 1)), batch_size=4, verbose=0)
print("trained", flush=True)
