"""Train on all GPUs of one machine: MirroredStrategy keeps a copy of the model on each, and adds up the gradients.

An ordinary Keras script with two more lines: the strategy, and `with strategy.scope()`. Without GPUs it uses one CPU
device; with `replicas_on_cpu: 2` in the cluster spec orch gives it two, for a test (not for speed).

    python examples/mirrored.py --epochs 3
"""

import argparse
import os
import time

import keras
import tensorflow as tf
from sklearn.datasets import load_digits


class ImagesPerSecond(keras.callbacks.Callback):
    """Measure each epoch except for the first, in which TensorFlow traces the step."""

    def __init__(self, images):
        super().__init__()
        self.images, self.rates, self.began = images, [], 0.0

    def on_epoch_begin(self, epoch, logs=None):  # noqa: ARG002
        self.began = time.monotonic()

    def on_epoch_end(self, epoch, logs=None):  # noqa: ARG002
        if epoch > 0:
            self.rates.append(self.images / (time.monotonic() - self.began))


def build() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.BatchNormalization(momentum=0.9),
            keras.layers.Conv2D(64, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=64, help="of one replica")
    args = parser.parse_args()

    keras.utils.set_random_seed(7)
    strategy = tf.distribute.MirroredStrategy()
    replicas = strategy.num_replicas_in_sync
    with strategy.scope():
        model = build()
        # More replicas train a larger batch per step; the learning rate grows with it.
        model.compile(
            keras.optimizers.Adam(1e-3 * replicas**0.5),
            "sparse_categorical_crossentropy",
            metrics=["accuracy"],
        )

    digits = load_digits()
    images = (digits.images[..., None] / 16.0).astype("float32")
    measured = ImagesPerSecond(len(images))
    callbacks = [measured]
    directory = os.environ.get("ORCH_CHECKPOINT_DIR")
    if directory:
        callbacks.insert(0, keras.callbacks.BackupAndRestore(os.path.join(directory, "backup")))
    # `fit` takes the batch of all replicas together, and splits it.
    model.fit(
        images,
        digits.target,
        batch_size=args.batch * replicas,
        epochs=args.epochs,
        callbacks=callbacks,
        verbose=2,
    )
    if measured.rates:
        print(f"replicas: {replicas}, images/s: {max(measured.rates):.0f}")


if __name__ == "__main__":
    main()
