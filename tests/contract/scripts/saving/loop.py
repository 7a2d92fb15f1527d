"""A loop of its own under MultiWorkerMirroredStrategy, in which all workers must save together."""

import json
import os
import sys
import time

import keras
import numpy as np
import tensorflow as tf

from orchestrator import runtime

pause_s = float(sys.argv[1]) if len(sys.argv) > 1 else 0.0
index = json.loads(os.environ.get("TF_CONFIG") or "{}").get("task", {}).get("index", 0)
directory = os.environ["ORCH_CHECKPOINT_DIR"]
strategy = tf.distribute.MultiWorkerMirroredStrategy()
keras.utils.set_random_seed(3)
with strategy.scope():
    weights = tf.Variable(np.ones(1000, "float32"))
    step = tf.Variable(0, dtype=tf.int64)
    # Reading it needs all workers: a save that one of them begins alone waits for ever.
    seen = tf.Variable(
        0.0, synchronization=tf.VariableSynchronization.ON_READ, aggregation=tf.VariableAggregation.SUM
    )
checkpoint = tf.train.Checkpoint(weights=weights, step=step, seen=seen)
manager = tf.train.CheckpointManager(checkpoint, directory, max_to_keep=3)
checkpoint.restore(manager.latest_checkpoint)


@tf.function
def train():
    def one():
        weights.assign_sub(tf.ones(1000) * 0.001)
        seen.assign_add(1.0)

    strategy.run(one)
    step.assign_add(1)


saves = []
while int(step.numpy()) < 120:
    train()
    runtime.report(int(step.numpy()))
    time.sleep(pause_s * (1 + index))
    if runtime.should_save():
        manager.save(checkpoint_number=int(step.numpy()))
        saves.append(int(step.numpy()))
print(json.dumps({"saves": saves, "weight": float(weights.numpy()[0]), "seen": float(seen.numpy())}))
