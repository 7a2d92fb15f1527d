"""Train a small ConvNet on handwritten digits, on as many workers as TF_CONFIG names (none: on this machine).

An ordinary Keras script. For a restart it only needs BackupAndRestore in ORCH_CHECKPOINT_DIR. Started by hand, without
that variable, it saves nothing.

    python examples/digits.py --epochs 3
    python examples/digits.py --data mnist      # 60 000 digits of 28 x 28; downloaded once by Keras
"""

import argparse
import os

import tensorflow as tf

# Before anything else of TensorFlow: the strategy starts the server that the other workers wait for.
strategy = tf.distribute.MultiWorkerMirroredStrategy()

import keras  # noqa: E402
import numpy as np  # noqa: E402


def load(name: str):
    """Return images in 0..1 with a channel, and labels: `((x_train, y_train), (x_test, y_test))`."""
    if name == "mnist":
        (x_train, y_train), (x_test, y_test) = keras.datasets.mnist.load_data()
        scale = 255.0
    else:
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split

        digits = load_digits()
        x_train, x_test, y_train, y_test = train_test_split(
            digits.images, digits.target, test_size=360, random_state=0, stratify=digits.target
        )
        scale = 16.0
    images = [(x[..., np.newaxis] / scale).astype("float32") for x in (x_train, x_test)]
    return (images[0], y_train.astype("int32")), (images[1], y_test.astype("int32"))


def build(shape) -> keras.Model:
    return keras.Sequential(
        [
            keras.Input(shape),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.BatchNormalization(momentum=0.9),
            keras.layers.Conv2D(64, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", choices=["digits", "mnist"], default="digits")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch", type=int, default=64, help="of all workers together")
    parser.add_argument("--save-every", type=int, default=20, metavar="STEPS")
    args = parser.parse_args()

    keras.utils.set_random_seed(7)
    (x_train, y_train), (x_test, y_test) = load(args.data)
    with strategy.scope():
        model = build(x_train.shape[1:])
        model.compile(
            optimizer=keras.optimizers.Adam(1e-3),
            loss="sparse_categorical_crossentropy",
            metrics=["accuracy"],
        )

    callbacks = []
    directory = os.environ.get("ORCH_CHECKPOINT_DIR")
    if directory:
        backup = os.path.join(directory, "backup")
        callbacks.append(
            keras.callbacks.BackupAndRestore(backup, save_freq=args.save_every, double_checkpoint=True)
        )
    model.fit(
        x_train,
        y_train,
        batch_size=args.batch,
        epochs=args.epochs,
        validation_data=(x_test, y_test),
        callbacks=callbacks,
        verbose=2,
    )
    loss, accuracy = model.evaluate(x_test, y_test, batch_size=args.batch, verbose=0)
    if strategy.cluster_resolver.task_id in (None, 0):
        print(
            f"test accuracy: {accuracy:.4f} (loss {loss:.4f}) after {int(model.optimizer.iterations.numpy())} steps"
        )


if __name__ == "__main__":
    main()
