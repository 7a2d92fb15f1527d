"""A script with a strategy of its own and orchestrator.keras.Checkpoint: python rescued.py OUT keras|tf_keras."""

import importlib
import sys
import time

import numpy as np
import tensorflow as tf

from orchestrator.keras import Checkpoint

strategy = tf.distribute.MultiWorkerMirroredStrategy()
keras = importlib.import_module(sys.argv[2])
keras.utils.set_random_seed(3)
generator = np.random.default_rng(5)
x = generator.normal(size=(320, 8)).astype("float32")
y = (x.sum(axis=1) > 0).astype("int32")
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
data = tf.data.Dataset.from_tensor_slices((x, y)).batch(16).with_options(options)
with strategy.scope():
    model = keras.Sequential(
        [keras.layers.Input((8,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(2, "softmax")]
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
slowly = keras.callbacks.LambdaCallback(on_train_batch_begin=lambda _batch, logs=None: time.sleep(0.02))
model.fit(data, epochs=3, validation_data=data.take(4), callbacks=[Checkpoint(), slowly], verbose=0)
np.savez(sys.argv[1], *map(np.asarray, model.get_weights()))
