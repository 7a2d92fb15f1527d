"""Batch and learning rate follow the number of replicas: python scales.py [PAUSE_S] [transparent].

Its backups are those of `transparent: true`, or it has orchestrator.keras.Checkpoint.
"""

import json
import sys
import time

import keras
import numpy as np
import tensorflow as tf

from orchestrator.keras import Checkpoint

pause_s = float(sys.argv[1]) if sys.argv[1:] and sys.argv[1] != "transparent" else 0.0
strategy = tf.distribute.MultiWorkerMirroredStrategy()
replicas = strategy.num_replicas_in_sync
keras.utils.set_random_seed(3)
x = np.random.default_rng(0).normal(size=(768, 6)).astype("float32")
with strategy.scope():
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.01 * replicas), "mse")


class Lowers(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.model.optimizer.learning_rate.assign(self.model.optimizer.learning_rate * 0.9)

    def on_train_batch_end(self, batch, logs=None):
        time.sleep(pause_s)


data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).shuffle(768, seed=5).batch(8 * replicas)
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
callbacks = [Lowers()] if "transparent" in sys.argv else [Checkpoint(), Lowers()]
history = model.fit(data.with_options(options), epochs=3, verbose=0, callbacks=callbacks).history
print(
    json.dumps(
        {
            "epochs": len(history["loss"]),
            "rate": float(model.optimizer.learning_rate.numpy()),
            "steps": int(model.optimizer.iterations.numpy()),
        }
    )
)
