"""Use two callbacks that are easily confused: BackupAndRestore and ModelCheckpoint.

BackupAndRestore is for resuming: it saves weights, optimizer and epoch, so that a training that was killed continues
where it was. It removes its files when the training has ended. ModelCheckpoint is for the result: it saves the best
model so far in a file of its own.

Both write into ORCH_CHECKPOINT_DIR. A new generation finds there what the one before saved, if it is verified, so the
script needs nothing else to survive a kill. Try it: `orch status` shows the pid.

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
    # A new process does not know how good the saved model is, and could replace it with a worse one.
    known = (
        keras.models.load_model(best).evaluate(x_test, y_test, verbose=0)[1] if os.path.exists(best) else None
    )
    if known is not None:
        print(f"the best model so far: {known:.4f}", flush=True)

    callbacks = [
        # After each epoch. Keras 3 would repeat the epoch even with a save within it (save_freq=STEPS).
        # It overwrites its file; double_checkpoint keeps the previous one, in case the task is killed meanwhile.
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
