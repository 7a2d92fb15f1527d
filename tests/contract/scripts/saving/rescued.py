"""A script with a strategy of its own and orchestrator.keras.Checkpoint: python rescued.py OUT keras|tf_keras."""

import importlib
import sys
import time

import numpy as np
import tensorflow as tf

from orchestrator import runtime
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
data = data.filter(lambda *_: True)  # no one knows its length, as with TFRecords


class Counts(keras.layers.Layer):
    """Counts what it is trained with in a variable of TensorFlow, which Keras 3 does not list."""

    def __init__(self):
        super().__init__()
        self.seen = tf.Variable(
            0.0,
            trainable=False,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )

    def call(self, x, training=False):
        if training:
            self.seen.assign_add(tf.cast(tf.shape(x)[0], tf.float32))
        return x


with strategy.scope():
    counts = Counts()
    model = keras.Sequential(
        [keras.layers.Input((8,)), counts, keras.layers.Dense(16, "relu"), keras.layers.Dense(2, "softmax")]
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
begun: list[int] = []  # outside of all callbacks: for which steps they were told that they begin
runtime.protect("begun", save=lambda: begun, restore=lambda state: begun.__setitem__(slice(None), state))


def begin(batch, logs=None):
    """Remember the step, and wait a little: it may be interrupted."""
    begun.append(batch)
    time.sleep(0.02)


slowly = keras.callbacks.LambdaCallback(on_train_batch_begin=begin)
model.fit(data, epochs=3, validation_data=data.take(4), callbacks=[Checkpoint(), slowly], verbose=0)
updates = int(model.optimizer.iterations.numpy())
np.savez(sys.argv[1], *map(np.asarray, model.get_weights()), begun, updates=updates, seen=counts.seen.numpy())
