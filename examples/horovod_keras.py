"""Train with Horovod and Keras: DistributedOptimizer, broadcast, and checkpoints on rank 0 only.

This file is not called horovod.py, because `import horovod` would then import it.

    orch up cluster_specs/horovod.yaml --follow
    python examples/horovod_keras.py --epochs 3        # without orch: one rank
"""

import argparse
import os

import horovod.tensorflow.keras as hvd
import numpy as np
import tensorflow as tf


def clusters(samples: int):
    """Return points around ten centres, and the number of each point's centre; the same on every rank."""
    random = np.random.default_rng(0)
    centres = random.normal(size=(10, 32))
    labels = random.integers(0, 10, samples)
    points = centres[labels] + random.normal(scale=0.8, size=(samples, 32))
    return points.astype("float32"), labels.astype("int32")


class Save(tf.keras.callbacks.Callback):
    """Save a checkpoint after each epoch."""

    def __init__(self, manager):
        super().__init__()
        self.manager = manager

    def on_epoch_end(self, _epoch, logs=None):  # noqa: ARG002 - Keras passes `logs` by name
        self.manager.save(checkpoint_number=int(self.model.optimizer.iterations.numpy()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--samples", type=int, default=8000)
    parser.add_argument("--batch", type=int, default=32, help="of each rank")
    args = parser.parse_args()

    hvd.init()
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:  # a rank sees all GPUs of the run on its host, and uses one
        tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")

    points, labels = clusters(args.samples)
    mine = slice(hvd.rank(), None, hvd.size())
    steps = args.samples // hvd.size() // args.batch  # equal on all ranks, or one would wait for ever
    points, labels = points[mine][: steps * args.batch], labels[mine][: steps * args.batch]

    model = tf.keras.Sequential(
        [
            tf.keras.layers.InputLayer((32,)),
            tf.keras.layers.Dense(64, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )
    optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.Adam(1e-3 * hvd.size()))
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    optimizer.build(model.trainable_variables)

    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(
            0
        ),  # after the first batch: weights and optimizer of rank 0
        hvd.callbacks.MetricAverageCallback(),
        # The rate above is that of all ranks; too much for the first steps, so it grows from that of one rank.
        hvd.callbacks.LearningRateWarmupCallback(1e-3 * hvd.size(), warmup_epochs=3),
    ]
    epoch = 0
    if hvd.rank() == 0:
        checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
        directory = os.environ.get("ORCH_CHECKPOINT_DIR", "checkpoints")
        manager = tf.train.CheckpointManager(checkpoint, directory, max_to_keep=3)
        checkpoint.restore(manager.latest_checkpoint)
        epoch = int(optimizer.iterations.numpy()) // steps
        callbacks.append(Save(manager))
    epoch = int(hvd.broadcast(epoch, 0))
    print(f"rank {hvd.rank()} of {hvd.size()} starts at epoch {epoch}", flush=True)

    history = model.fit(
        points, labels, args.batch, args.epochs, 2 if hvd.rank() == 0 else 0, callbacks, initial_epoch=epoch
    ).history
    told = f", loss {history['loss'][-1]:.3f}, accuracy {history['accuracy'][-1]:.3f}" if history else ""
    print(f"rank {hvd.rank()} is done after {int(optimizer.iterations.numpy())} steps{told}", flush=True)


if __name__ == "__main__":
    main()
