"""Trains a small ConvNet for ever with MultiWorkerMirroredStrategy: python tf_train.py STATE.

The first worker saves every 50 steps, or PEERS_SAVE_S seconds, the others to a place that nobody reads, as TensorFlow's
tutorial has it. Under orch each task has a directory of its own.
"""

import json
import os
import sys
from collections.abc import Callable

import tensorflow as tf
from telling import Saves, Teller

BATCH = 64


def main(state: str) -> None:
    """Restore, and train until killed."""
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    rank = int(json.loads(os.environ["TF_CONFIG"])["task"]["index"])
    tell, saves = Teller(state, rank), Saves()
    with strategy.scope():
        shapes = ((3, 3, 1, 32), (3, 3, 32, 64), (7 * 7 * 64, 10))
        weights = [tf.Variable(0.1 * tf.random.stateless_normal(shape, (1, 2))) for shape in shapes]
        of_one = tf.VariableAggregation.ONLY_FIRST_REPLICA
        step = tf.Variable(0, dtype=tf.int64, trainable=False, aggregation=of_one)
    checkpoint = tf.train.Checkpoint(step=step, **{f"w{n}": weight for n, weight in enumerate(weights)})
    place = os.environ.get("ORCH_CHECKPOINT_DIR") or f"{state}/checkpoints"
    newest = tf.train.latest_checkpoint(place)
    if newest:
        checkpoint.restore(newest)
    if rank and "ORCH_CHECKPOINT_DIR" not in os.environ:
        place = f"{state}/unread-{rank}"
    manager = tf.train.CheckpointManager(checkpoint, place, 2)
    whole = rescuing(manager, step)
    images = tf.random.stateless_normal((BATCH, 28, 28, 1), (3, 4))
    labels = tf.random.stateless_uniform((BATCH,), (5, 6), maxval=10, dtype=tf.int32)

    @tf.function
    def train() -> None:
        def once() -> None:
            with tf.GradientTape() as tape:
                found = images
                for kernel in weights[:2]:
                    found = tf.nn.max_pool2d(tf.nn.relu(tf.nn.conv2d(found, kernel, 1, "SAME")), 2, 2, "SAME")
                logits = tf.reshape(found, (BATCH, -1)) @ weights[2]
                loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
            gradients = tape.gradient(loss, weights)
            gradients = tf.distribute.get_replica_context().all_reduce("mean", gradients)
            for weight, gradient in zip(weights, gradients, strict=True):
                weight.assign_sub(0.01 * gradient)
            step.assign_add(1)

        strategy.run(whole(once))

    while True:
        train()
        done = int(step.numpy())
        tell.did(done)
        report(done)
        if saves.due(done):
            manager.save()


def rescuing(
    manager: tf.train.CheckpointManager, step: tf.Variable
) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Return what lets a survivor hand over its state, where orch runs this with `rescue: auto`."""
    if "ORCH_RUN" not in os.environ:
        return lambda function: function
    from orchestrator import runtime

    return runtime.rescue(manager, step)


def report(step: int) -> None:
    """Tell orch, where it runs this."""
    if "ORCH_RUN" in os.environ:
        from orchestrator import runtime

        runtime.report(step)


if __name__ == "__main__":
    main(sys.argv[1])
