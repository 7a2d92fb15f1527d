"""A training loop of one's own for any strategy: `strategy.run`, losses that are scaled by hand, and metrics.

As TensorFlow's guide to custom training has it, but for two lines: where the checkpoints are, and `runtime.report`.

    python examples/custom_training.py --epochs 2      # without orch
"""

import argparse
import os

import keras
import tensorflow as tf
from sklearn.datasets import load_digits

try:
    from orchestrator import runtime
except ImportError:  # started without orch
    runtime = None


def build() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(16, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(10),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=32, help="of one replica")
    args = parser.parse_args()

    strategy = tf.distribute.MirroredStrategy()
    batch = args.batch * strategy.num_replicas_in_sync
    digits = load_digits()
    images, labels = (digits.images[..., None] / 16.0).astype("float32"), digits.target.astype("int32")
    train = tf.data.Dataset.from_tensor_slices((images[:1400], labels[:1400])).shuffle(1400, seed=1)
    test = tf.data.Dataset.from_tensor_slices((images[1400:], labels[1400:]))
    train = strategy.experimental_distribute_dataset(train.batch(batch, drop_remainder=True))
    test = strategy.experimental_distribute_dataset(test.batch(batch))

    with strategy.scope():
        model = build()
        optimizer = keras.optimizers.Adam(1e-3)
        optimizer.build(model.trainable_variables)
        loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
        accuracy = keras.metrics.SparseCategoricalAccuracy()

    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
    directory = os.environ.get("ORCH_CHECKPOINT_DIR", "checkpoints")
    manager = tf.train.CheckpointManager(checkpoint, directory, max_to_keep=3)
    checkpoint.restore(manager.latest_checkpoint)

    def replica_step(batch_images, batch_labels):
        with tf.GradientTape() as tape:
            losses = loss_of(batch_labels, model(batch_images, training=True))
            # The gradients of the replicas are added up: so each divides by the batch of all.
            loss = tf.nn.compute_average_loss(losses, global_batch_size=batch)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def train_step(data):
        return strategy.reduce("SUM", strategy.run(replica_step, args=data), axis=None)

    @tf.function
    def test_step(data):
        strategy.run(lambda x, y: accuracy.update_state(y, model(x)), args=data)

    steps = 1400 // batch
    for epoch in range(int(optimizer.iterations.numpy()) // steps, args.epochs):
        total = 0.0
        for data in train:
            total += float(train_step(data))
            if runtime:
                runtime.report(int(optimizer.iterations.numpy()), loss=total)
        accuracy.reset_state()
        for data in test:
            test_step(data)
        manager.save(checkpoint_number=int(optimizer.iterations.numpy()))
        print(
            f"epoch {epoch + 1}: loss {total / steps:.4f}, test accuracy {float(accuracy.result()):.4f}",
            flush=True,
        )
    print(f"done at step {int(optimizer.iterations.numpy())} with {strategy.num_replicas_in_sync} replica(s)")


if __name__ == "__main__":
    main()
