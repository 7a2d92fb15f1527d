"""A script of TensorFlow 1: a MonitoredTrainingSession, which saves and restores by itself.

TensorFlow 2 still runs it, by `tf.compat.v1`. orch reads its global step by itself.

    python examples/monitored_session.py --steps 500
"""

import argparse
import os

import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--steps", type=int, default=2000)
parser.add_argument("--batch", type=int, default=32)
parser.add_argument("--save-every", type=int, default=100, metavar="STEPS")
args = parser.parse_args()

random = np.random.default_rng(0)
points = random.normal(size=(4096, 8)).astype("float32")
labels = (points.sum(1) > 0).astype("float32")

x, y = tf.placeholder(tf.float32, (None, 8)), tf.placeholder(tf.float32, (None,))
weights = tf.get_variable("weights", (8, 1), initializer=tf.zeros_initializer())
logits = tf.squeeze(x @ weights, 1)
loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=y, logits=logits))
step = tf.train.get_or_create_global_step()
train = tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss, global_step=step)

value, at = float("nan"), 0
with tf.train.MonitoredTrainingSession(
    checkpoint_dir=os.environ.get("ORCH_CHECKPOINT_DIR", "checkpoints"),
    save_checkpoint_steps=args.save_every,
    save_summaries_steps=None,
    save_summaries_secs=None,
    hooks=[tf.train.StopAtStepHook(last_step=args.steps)],
) as session:
    # Not `session.run`, which would call the hooks: StopAtStepHook counts each run.
    start = session.run_step_fn(lambda step_context: step_context.session.run(step))
    print(f"starting at step {start}", flush=True)
    while not session.should_stop():
        mine = random.integers(0, len(points), args.batch)
        _, value, at = session.run((train, loss, step), {x: points[mine], y: labels[mine]})
print(f"done at step {at}, loss {value:.4f}")
