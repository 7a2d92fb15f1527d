"""The article's script: one line chooses the strategy. Under transparent it gets that of cluster.yaml.

It trains twice: by `fit`, and in a loop of its own by `strategy.run`.
"""

import sys

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(3)
strategy = tf.distribute.MirroredStrategy()
# strategy = tf.distribute.MultiWorkerMirroredStrategy()
BATCH = 32

rng = np.random.default_rng(5)
x = rng.normal(size=(128, 6)).astype("float32")
y = (x @ rng.normal(size=(6, 1))).astype("float32")

with strategy.scope():
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01), "mse")
losses = model.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0).history["loss"]

with strategy.scope():
    optimizer = keras.optimizers.SGD(0.05)
    optimizer.build(model.trainable_variables)
batches = strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH))


@tf.function
def step(inputs, targets):
    def of_a_replica(inputs, targets):
        with tf.GradientTape() as tape:
            each = tf.reduce_mean((model(inputs, training=True) - targets) ** 2, axis=-1)
            loss = tf.nn.compute_average_loss(each, global_batch_size=BATCH)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    return strategy.reduce("SUM", strategy.run(of_a_replica, args=(inputs, targets)), axis=None)


losses += [float(step(inputs, targets)) for inputs, targets in batches]
print("losses", *(f"{loss:.6f}" for loss in losses))
print("weights", f"{sum(float(np.abs(w).sum()) for w in model.get_weights()):.5f}")
print("replicas", strategy.num_replicas_in_sync, file=sys.stderr)
