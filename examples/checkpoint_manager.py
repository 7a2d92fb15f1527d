"""Train in a custom loop: MultiWorkerMirroredStrategy, tf.train.CheckpointManager, and one call of runtime.report.

An evaluator, if the spec has one, runs the same script by itself and evaluates each checkpoint of the chief.

    python examples/checkpoint_manager.py --steps 200
"""

import argparse
import json
import os

import keras
import tensorflow as tf
from sklearn.datasets import load_digits

try:
    from orchestrator import runtime
except ImportError:  # started without orch
    runtime = None


def dataset(batch: int) -> tf.data.Dataset:
    digits = load_digits()
    images = (digits.images[..., None] / 16.0).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((images, digits.target.astype("int32")))
    return data.shuffle(2000, seed=1).repeat().batch(batch, drop_remainder=True)


def build() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(16, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(10),
        ]
    )


def evaluate(directory: str, last: int) -> None:
    """Print the accuracy of each new checkpoint of the chief, up to the one of the last step."""
    digits = load_digits()
    images = (digits.images[..., None] / 16.0).astype("float32")
    model = build()
    checkpoint = tf.train.Checkpoint(model=model)
    for path in tf.train.checkpoints_iterator(directory):
        try:
            checkpoint.restore(path).expect_partial()  # the optimizer's state is not needed
        except tf.errors.NotFoundError:
            continue  # the chief has already removed it
        step = int(path.rpartition("-")[2])
        accuracy = float((model(images).numpy().argmax(1) == digits.target).mean())
        if runtime:
            runtime.report(step, accuracy=accuracy)
        print(f"evaluated at step {step}, accuracy {accuracy:.4f}", flush=True)
        if step >= last:
            return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=64, help="of all workers together")
    parser.add_argument("--save-every", type=int, default=10, metavar="STEPS")
    args = parser.parse_args()

    directory = os.environ.get("ORCH_CHECKPOINT_DIR", "checkpoints")
    if json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {}).get("type") == "evaluator":
        evaluate(directory, args.steps)
        return

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = build()
        optimizer = keras.optimizers.Adam(1e-3)
        optimizer.build(model.trainable_variables)
        loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    # Every worker saves in its own directory; only the chief's checkpoints are kept.
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
    shown = "-" if loss is None else f"{float(loss):.4f}"
    print(f"done at step {int(optimizer.iterations.numpy())}, loss {shown}")


if __name__ == "__main__":
    main()
