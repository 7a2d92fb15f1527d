"""Trains a few steps with a custom loop, saves, and then waits to be killed. It serves to measure starts.

    python comeback.py CHECKPOINTS TIMES

writes to TIMES.<task index> when its first step was done (CLOCK_BOOTTIME, in seconds).
"""

import json
import os
import sys
import time

import tensorflow as tf

from orchestrator import runtime

STEPS = 20
SAVE_EVERY = 10


def main() -> None:
    checkpoints, times = sys.argv[1:]
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    with strategy.scope():
        weights = tf.Variable(tf.random.stateless_normal((256, 10), (1, 2)))
        step = tf.Variable(0, dtype=tf.int64)
    # Under orch each task has its own directory; by hand, the caller has made one for each.
    directory = os.environ.get("ORCH_CHECKPOINT_DIR") or f"{checkpoints}/{index}"
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(weights=weights, step=step), directory, 2)
    manager.restore_or_initialize()

    @tf.function
    def train(batch: tf.Tensor) -> tf.Tensor:
        def once(batch: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(batch @ weights))
            (gradient,) = tape.gradient(loss, [weights])
            gradient = tf.distribute.get_replica_context().all_reduce("mean", gradient)
            weights.assign_sub(0.01 * gradient)
            return loss

        return strategy.run(once, (batch,))

    batch = tf.random.stateless_normal((64, 256), (3, 4))
    first = int(step.numpy())
    while int(step.numpy()) < first + STEPS:
        train(batch)
        step.assign_add(1)
        if int(step.numpy()) == first + 1:
            with open(f"{times}.{index}.new", "w") as file:
                json.dump(time.clock_gettime(time.CLOCK_BOOTTIME), file)
            os.replace(f"{times}.{index}.new", f"{times}.{index}")
        if int(step.numpy()) % SAVE_EVERY == 0:
            manager.save()
        runtime.report(int(step.numpy()))
    while True:
        time.sleep(0.1)


if __name__ == "__main__":
    main()
