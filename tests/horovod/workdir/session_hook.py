"""A Horovod script of TensorFlow 1: DistributedOptimizer, BroadcastGlobalVariablesHook, and saves on rank 0 only."""

import argparse
import os

import horovod.tensorflow as hvd
import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=2000)
args = parser.parse_args()

hvd.init()
random = np.random.default_rng(hvd.rank())
x, y = tf.placeholder(tf.float32, (None, 8)), tf.placeholder(tf.float32, (None,))
# Other weights on each rank: the hook must make them equal.
start = tf.random_normal_initializer(seed=hvd.rank())
weights = tf.get_variable("weights", (8, 1), initializer=start)
loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=y, logits=tf.squeeze(x @ weights, 1)))
step = tf.train.get_or_create_global_step()
optimizer = hvd.DistributedOptimizer(tf.train.GradientDescentOptimizer(0.01 * hvd.size()))
train = optimizer.minimize(loss, global_step=step)

with tf.train.MonitoredTrainingSession(
    checkpoint_dir=os.environ["ORCH_CHECKPOINT_DIR"] if hvd.rank() == 0 else None,
    save_checkpoint_steps=50,
    save_summaries_steps=None,
    save_summaries_secs=None,
    hooks=[hvd.BroadcastGlobalVariablesHook(0), tf.train.StopAtStepHook(last_step=args.steps)],
) as session:
    found = session.run_step_fn(lambda step_context: step_context.session.run(step))
    print(f"rank {hvd.rank()} of {hvd.size()} starts at step {found}", flush=True)
    while not session.should_stop():
        points = random.normal(size=(32, 8)).astype("float32")
        _, found, at = session.run(
            (train, weights, step), {x: points, y: (points.sum(1) > 0).astype("float32")}
        )
print(f"rank {hvd.rank()} is done at step {at}, weights {np.abs(found).sum():.4f}", flush=True)
