"""Save the weights after each epoch by ModelCheckpoint, and load the newest: the form of the older tutorials.

It is Keras 2's form (tf_keras): `save_weights_only=True` writes TensorFlow's own checkpoint files, with the optimizer
in them, which `tf.train.latest_checkpoint` finds. Keras 3 writes files that end in `.weights.h5`, and refuses others.

    orch up cluster_specs/model_checkpoint.yaml --follow
    TF_USE_LEGACY_KERAS=1 python examples/model_checkpoint.py --epochs 3      # without orch
"""

import argparse
import os

import numpy as np
import tensorflow as tf

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--epochs", type=int, default=12)
parser.add_argument("--samples", type=int, default=6000)
parser.add_argument("--batch", type=int, default=64, help="of all replicas together")
args = parser.parse_args()

several = (
    "TF_CONFIG" in os.environ
)  # `strategy: multi_worker_mirrored`: each worker loads from its own directory
strategy = tf.distribute.MultiWorkerMirroredStrategy() if several else tf.distribute.MirroredStrategy()
random = np.random.default_rng(0)
points = random.normal(size=(args.samples, 16)).astype("float32")
labels = (points.sum(1) > 0).astype("int32")

with strategy.scope():
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Input((16,)),
            tf.keras.layers.Dense(64, activation="relu"),
            tf.keras.layers.Dense(2),
        ]
    )
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])

directory = os.environ.get("ORCH_CHECKPOINT_DIR", "training_checkpoints")
prefix = os.path.join(directory, "ckpt_{epoch}")
callbacks = [tf.keras.callbacks.ModelCheckpoint(filepath=prefix, save_weights_only=True)]

newest, epoch = tf.train.latest_checkpoint(directory), 0
if newest:
    model.load_weights(newest)
    epoch = int(newest.rpartition("ckpt_")[2])
print(f"starting at epoch {epoch}", flush=True)

model.fit(points, labels, args.batch, args.epochs, verbose=2, callbacks=callbacks, initial_epoch=epoch)
model.load_weights(tf.train.latest_checkpoint(directory))
_, accuracy = model.evaluate(points, labels, verbose=0)
print(f"accuracy {accuracy:.3f} after {int(model.optimizer.iterations.numpy())} steps")
