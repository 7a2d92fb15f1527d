"""A loop of the script's own, which saves through a CheckpointManager: python rescued_loop.py OUT."""

import os
import sys
import time

import numpy as np
import tensorflow as tf

from orchestrator import runtime

strategy = tf.distribute.MultiWorkerMirroredStrategy()
examples = np.random.default_rng(5).normal(size=(64, 8)).astype("float32")
with strategy.scope():
    weights = tf.Variable(tf.zeros((8, 1)))
    speed = tf.Variable(tf.zeros((8, 1)), trainable=False)
    step = tf.Variable(
        0, dtype=tf.int64, trainable=False, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA
    )
    # Read by all together, as the moving averages of BatchNormalization and the sums of a metric are.
    seen, moving = (
        tf.Variable(
            0.0, trainable=False, synchronization=tf.VariableSynchronization.ON_READ, aggregation=aggregation
        )
        for aggregation in (tf.VariableAggregation.SUM, tf.VariableAggregation.MEAN)
    )
place, number = f"{runtime.checkpoint_dir()}/ckpt", strategy.cluster_resolver.task_id
manager = tf.train.CheckpointManager(
    tf.train.Checkpoint(weights=weights, speed=speed, step=step, seen=seen, moving=moving),
    place if number == 0 else f"{place}/workertemp_{number}",  # as TensorFlow's tutorial has it
    2,
)
told: list[int] = []  # what only the script knows: here, for which steps its own lines have run
runtime.protect("told", save=lambda: told, restore=told.extend)
manager.checkpoint.restore(tf.train.latest_checkpoint(place))
whole = runtime.rescue(manager, step)


@tf.function
def train(batch):
    """Make a step of all replicas; the loss is reduced after it."""

    def once(batch):
        step.assign_add(1)
        seen.assign_add(16.0)
        moving.assign(0.9 * moving + 1.0)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((batch @ weights - tf.reduce_sum(batch, 1, keepdims=True)) ** 2)
        gradient = tf.distribute.get_replica_context().all_reduce("mean", tape.gradient(loss, weights))
        speed.assign(0.9 * speed + gradient)
        weights.assign_sub(0.01 * speed)
        return loss

    return strategy.reduce("mean", strategy.run(whole(once), args=(batch,)), axis=None)


while (done := int(step.numpy())) < 60:
    train(tf.constant(examples[done % 4 * 16 : done % 4 * 16 + 16]))
    told.append(done + 1)
    runtime.report(done + 1)
    time.sleep(300.0 if done + 1 == int(os.environ.get("STUCK_AT", "-1")) else 0.02)
np.savez(sys.argv[1], weights.numpy(), speed.numpy(), seen.numpy(), moving.numpy(), told)
