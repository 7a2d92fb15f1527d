"""Train with Keras 2 (tf_keras), which many scripts still use: set TF_USE_LEGACY_KERAS=1.

TF_USE_LEGACY_KERAS=1 python examples/tf_keras_backup.py
"""

import argparse
import os

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")

import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()

from sklearn.datasets import load_digits  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch", type=int, default=64, help="of all workers together")
    parser.add_argument("--save-every", type=int, default=10, metavar="STEPS")
    args = parser.parse_args()

    digits = load_digits()
    images = (digits.images[..., None] / 16.0).astype("float32")
    with strategy.scope():
        model = tf.keras.Sequential(
            [
                tf.keras.layers.Input((8, 8, 1)),
                tf.keras.layers.Conv2D(16, 3, activation="relu"),
                tf.keras.layers.BatchNormalization(),
                tf.keras.layers.Flatten(),
                tf.keras.layers.Dense(10, activation="softmax"),
            ]
        )
        model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])

    directory = os.environ.get("ORCH_CHECKPOINT_DIR", "checkpoints")
    backup = tf.keras.callbacks.BackupAndRestore(os.path.join(directory, "backup"), save_freq=args.save_every)
    model.fit(images, digits.target, batch_size=args.batch, epochs=args.epochs, callbacks=[backup], verbose=2)
    print(f"done at step {int(model.optimizer.iterations.numpy())}")


if __name__ == "__main__":
    main()
