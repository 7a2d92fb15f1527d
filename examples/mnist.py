"""A ConvNet like that of the multi-GPU tutorials: twelve epochs, an accuracy of at least 0.98, seconds of each epoch.

One file for every strategy. By hand it trains on this machine's GPUs. Under orch with `transparent: true` the line that
makes the strategy gives the one that cluster.yaml names.

    python examples/mnist.py                                    # digits of 8 x 8, which scikit-learn brings along
    python examples/mnist.py --data mnist                       # downloaded once by Keras; also fashion_mnist, cifar10
    python examples/mnist.py --data mnist --file mnist.npz      # from a file, for hosts without a network
    python examples/mnist.py --data mnist --tfds                # by tensorflow_datasets
    python examples/mnist.py --data mnist --notebook            # with the larger ConvNet of the notebook
"""

import argparse
import time

import keras
import numpy as np
import tensorflow as tf

DATA = ("digits", "mnist", "fashion_mnist", "cifar10")


def load(args):
    """Return `(x_train, y_train), (x_test, y_test)`: images in 0..1 with channels last, and their labels."""
    if args.data == "digits":
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split

        digits = load_digits()
        x_train, x_test, y_train, y_test = train_test_split(
            digits.images * (255 / 16), digits.target, test_size=360, random_state=0, stratify=digits.target
        )
    elif args.file:
        with np.load(args.file) as file:
            x_train, y_train, x_test, y_test = (
                file[name] for name in ("x_train", "y_train", "x_test", "y_test")
            )
    elif args.tfds:
        import tensorflow_datasets as tfds

        (x_train, y_train), (x_test, y_test) = (
            tfds.as_numpy(tfds.load(args.data, split=split, batch_size=-1, as_supervised=True))
            for split in ("train", "test")
        )
    else:
        (x_train, y_train), (x_test, y_test) = getattr(keras.datasets, args.data).load_data()
    images = [(x if x.ndim == 4 else x[..., np.newaxis]).astype("float32") / 255 for x in (x_train, x_test)]
    return (images[0], y_train.reshape(-1).astype("int32")), (images[1], y_test.reshape(-1).astype("int32"))


def build(shape) -> keras.Model:
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input(shape),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.Conv2D(64, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Dropout(0.25),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dropout(0.5),
            layers.Dense(10, activation="softmax"),
        ]
    )


def build_notebook(shape) -> keras.Model:
    """Return the ConvNet of the notebook with the table: 32 and 256 filters, 128 units, BatchNormalization."""
    layers = keras.layers
    model = keras.Sequential([keras.Input(shape)])
    for layer in (layers.Conv2D(32, 3, padding="same"), layers.Conv2D(256, 3, padding="same")):
        model.add(layer)
        model.add(layers.BatchNormalization(momentum=0.9))  # the digits have too few steps for 0.99
        model.add(layers.Activation("relu"))
        model.add(layers.MaxPooling2D())
    model.add(layers.Flatten())
    model.add(layers.Dense(128))
    model.add(layers.BatchNormalization(momentum=0.9))
    model.add(layers.Activation("relu"))
    model.add(layers.Dropout(0.5))
    model.add(layers.Dense(10, activation="softmax"))
    return model


class Seconds(keras.callbacks.Callback):
    """Measure each epoch. The first one traces the step and does not count."""

    def on_train_begin(self, logs=None):  # noqa: ARG002
        self.epochs = []

    def on_epoch_begin(self, epoch, logs=None):  # noqa: ARG002
        self.began = time.monotonic()

    def on_epoch_end(self, epoch, logs=None):  # noqa: ARG002
        self.epochs.append(time.monotonic() - self.began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", choices=DATA, default="digits")
    parser.add_argument(
        "--file", help="an .npz with x_train, y_train, x_test and y_test, as Keras keeps them"
    )
    parser.add_argument("--tfds", action="store_true", help="load by tensorflow_datasets")
    parser.add_argument(
        "--notebook", action="store_true", help="the ConvNet of the notebook, which is larger"
    )
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch", type=int, default=64, help="of all replicas together")
    args = parser.parse_args()

    keras.utils.set_random_seed(7)
    strategy = tf.distribute.MirroredStrategy()
    (x_train, y_train), (x_test, y_test) = load(args)
    with strategy.scope():
        model = (build_notebook if args.notebook else build)(x_train.shape[1:])
        model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    seconds = Seconds()
    model.fit(x_train, y_train, batch_size=args.batch, epochs=args.epochs, verbose=2, callbacks=[seconds])
    loss, accuracy = model.evaluate(x_test, y_test, batch_size=args.batch, verbose=0)
    later = seconds.epochs[1:]
    pace = f"{np.mean(later):.2f} s an epoch after the first" if later else "no later epoch"
    print(
        f"replicas {strategy.num_replicas_in_sync}, {pace}, test accuracy {accuracy:.4f} (loss {loss:.4f})",
        flush=True,
    )


if __name__ == "__main__":
    main()
