"""Keras's own TensorBoard callback and `model.save`, as any script on one machine has them.

cluster_specs/curves.yaml trains this unchanged file on two workers. `orch tensorboard` shows the curves of both, and
the chief's profile of two batches (TensorBoard needs `pip install tensorboard-plugin-profile` for that page); the
model is fetched at the end.
"""

import argparse

import keras
from sklearn.datasets import load_digits

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=10)
options = parser.parse_args()

keras.utils.set_random_seed(1)
images, labels = load_digits(return_X_y=True)
images = (images / 16.0).astype("float32")

model = keras.Sequential(
    [keras.Input((64,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)]
)
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
model.fit(
    images[:1536],
    labels[:1536],
    batch_size=64,
    epochs=options.epochs,
    validation_data=(images[1536:], labels[1536:]),
    callbacks=[keras.callbacks.TensorBoard(log_dir="./logs", profile_batch=(5, 6))],
    verbose=2,
)
model.save("model.keras")
