"""A training loop of one's own: MultiWorkerMirroredStrategy, tf.train.CheckpointManager, and one call to report.

python examples/checkpoint_manager.py --steps 200
"""

import argparse
import os

import keras
import tensorflow as tf
from sklearn.datasets import load_digits

try:
    from orchestrator import runtime
except ImportError:  # started by hand, where orch is not installed
    runtime = None


def dataset(batch: int) -> tf.data.Dataset:
    digits = load_digits()
    images = (digits.images[..., None] / 16.0).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((images, digits.target.astype("int32")))
    return data.shuffle(2000, seed=1).repeat().batch(batch, drop_remainder=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=64, help="of all workers together")
    parser.add_argument("--save-every", type=int, default=10, metavar="STEPS")
    args = parser.parse_args()

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((8, 8, 1)),
                keras.layers.Conv2D(16, 3, activation="relu"),
                keras.layers.Flatten(),
                keras.layers.Dense(10),
            ]
        )
        optimizer = keras.optimizers.Adam(1e-3)
        optimizer.build(model.trainable_variables)
        loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    # Every worker saves, each into its own directory; only the chief's lasts.
    directory = os.environ.get("ORCH_CHECKPOINT_DIR", "checkpoints")
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
    manager = tf.train.CheckpointManager(checkpoint, directory, max_to_keep=3)
    checkpoint.restore(manager.latest_checkpoint)

    def replica_step(images, labels):
        with tf.GradientTape() as tape:
            losses = loss_of(labels, model(images, training=True))
            loss = tf.nn.compute_average_loss(losses, global_batch_size=args.batch)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def train_step(images, labels):
        return strategy.reduce("SUM", strategy.run(replica_step, args=(images, labels)), axis=None)

    start = int(optimizer.iterations.numpy())
    print(f"starting at step {start}", flush=True)
    batches = iter(strategy.experimental_distribute_dataset(dataset(args.batch)))
    loss = None
    for step in range(start + 1, args.steps + 1):
        loss = train_step(*next(batches))
        if runtime:
            runtime.report(step, loss=loss)
        if step % args.save_every == 0:
            manager.save(checkpoint_number=step)
    print(f"done at step {int(optimizer.iterations.numpy())}, loss {loss}")


if __name__ == "__main__":
    main()
