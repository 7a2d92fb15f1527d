"""Two callbacks that are easily taken for one another, and what each is for.

BackupAndRestore is for going on: weights, optimizer and epoch, so that a training that was killed continues where
it was. It removes its files when training has ended well. ModelCheckpoint is for the result: the best model that
was seen, in a file of its own, for whoever wants to use it.

Both write into ORCH_CHECKPOINT_DIR, which begins with what the start before has left there that reads whole; so
the script does nothing else for being killed. Kill it and see (`orch status` tells the pid).

    python examples/fault_tolerance.py --epochs 10
"""

import argparse
import os

import keras
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


def build() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=10)
    args = parser.parse_args()

    keras.utils.set_random_seed(7)
    digits = load_digits()
    x, x_test, y, y_test = train_test_split(digits.data / 16.0, digits.target, test_size=360, random_state=0)
    with tf.distribute.MirroredStrategy().scope():
        model = build()
        model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])

    directory = os.environ.get("ORCH_CHECKPOINT_DIR", "checkpoints")
    best = os.path.join(directory, "best.keras")
    # A new process does not know how good the file already is, and would replace it with something worse.
    known = (
        keras.models.load_model(best).evaluate(x_test, y_test, verbose=0)[1] if os.path.exists(best) else None
    )
    if known is not None:
        print(f"the best model so far: {known:.4f}", flush=True)

    callbacks = [
        # After each epoch. In the midst of one (save_freq=STEPS) Keras 3 begins that epoch anew all the same.
        # It writes one file in place; double_checkpoint keeps the one before it, should it be killed just then.
        keras.callbacks.BackupAndRestore(os.path.join(directory, "backup"), double_checkpoint=True),
        keras.callbacks.ModelCheckpoint(
            best, monitor="val_accuracy", mode="max", save_best_only=True, initial_value_threshold=known
        ),
    ]
    model.fit(
        x,
        y,
        batch_size=64,
        epochs=args.epochs,
        validation_data=(x_test, y_test),
        callbacks=callbacks,
        verbose=2,
    )
    _, accuracy = keras.models.load_model(best).evaluate(x_test, y_test, verbose=0)
    print(f"the best model: {accuracy:.4f} in {os.path.basename(best)}")


if __name__ == "__main__":
    main()
