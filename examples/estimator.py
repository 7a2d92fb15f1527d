"""An Estimator, as texts before TensorFlow 2.16 have it: unchanged, but for the directory. It needs TensorFlow 2.15.

orch reads its global step by itself, and Estimator comes back from its `model_dir`.

    orch up cluster_specs/estimator.yaml --follow
"""

import argparse
import os

import numpy as np
import tensorflow as tf

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--steps", type=int, default=2000)
parser.add_argument("--save-every", type=int, default=100, metavar="STEPS")
parser.add_argument("--mirrored", action="store_true", help="a replica on each device")
args = parser.parse_args()

random = np.random.default_rng(0)
points = random.normal(size=(4096, 8)).astype("float32")
labels = (points.sum(1) > 0).astype("int32")


def train_input():
    data = tf.data.Dataset.from_tensor_slices(({"x": points}, labels))
    return data.shuffle(4096).repeat().batch(64)


def eval_input():
    return tf.data.Dataset.from_tensor_slices(({"x": points}, labels)).batch(256)


# The collectives that a MirroredStrategy takes by itself stand still in the sessions of an Estimator on CPUs.
reduction = tf.distribute.ReductionToOneDevice()
strategy = tf.distribute.MirroredStrategy(cross_device_ops=reduction) if args.mirrored else None
config = tf.estimator.RunConfig(
    model_dir=os.environ.get("ORCH_CHECKPOINT_DIR", "model"),
    save_checkpoints_steps=args.save_every,
    train_distribute=strategy,
)
estimator = tf.estimator.DNNClassifier(
    hidden_units=[32],
    feature_columns=[tf.feature_column.numeric_column("x", shape=(8,))],
    n_classes=2,
    optimizer=lambda: tf.keras.optimizers.legacy.Adam(0.005),  # made anew for each replica
    config=config,
)
replicas = strategy.num_replicas_in_sync if strategy else 1
print(f"{replicas} replica(s), starting from {estimator.latest_checkpoint()}", flush=True)
metrics, _ = tf.estimator.train_and_evaluate(
    estimator,
    tf.estimator.TrainSpec(train_input, max_steps=args.steps),
    tf.estimator.EvalSpec(eval_input, steps=None, throttle_secs=10**6),
)
metrics = metrics or estimator.evaluate(eval_input)  # None where nothing was left to train
print(f"done at step {metrics['global_step']}, accuracy {metrics['accuracy']:.3f}")
