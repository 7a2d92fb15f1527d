"""Save a model that a strategy has trained, and load it with another strategy, and with none.

python examples/save_and_load.py --epochs 1      # without orch
"""

import argparse

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits


def build() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(16, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()

    digits = load_digits()
    images, labels = (digits.images[..., None] / 16.0).astype("float32"), digits.target
    keras.utils.set_random_seed(7)
    mirrored = tf.distribute.MirroredStrategy()
    with mirrored.scope():
        model = build()
        model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(images, labels, batch_size=64, epochs=args.epochs, verbose=2)
    expected = model.predict(images, batch_size=64, verbose=0)

    # Files of a task lie in its working directory, from which `orch fetch` brings them.
    model.save("model.keras")
    model.export("exported", verbose=False)

    def differs_by(predicted):
        return float(np.abs(np.asarray(predicted) - expected).max())

    plain = keras.models.load_model("model.keras")
    print(f"without a strategy: differs by {differs_by(plain.predict(images, batch_size=64, verbose=0)):.1e}")
    one_device = tf.distribute.OneDeviceStrategy("/cpu:0")
    with one_device.scope():
        other = keras.models.load_model("model.keras")
    other.fit(images, labels, batch_size=64, epochs=1, verbose=0)
    print(f"goes on under another strategy at step {int(other.optimizer.iterations.numpy())}")
    exported = tf.saved_model.load("exported")  # must be kept: it holds the variables
    print(f"as a SavedModel: differs by {differs_by(exported.serve(images)):.1e}", flush=True)


if __name__ == "__main__":
    main()
