"""An ordinary Keras script: it knows nothing of strategies, of other workers, or of orch.

`python ordinary.py` trains on one device. cluster_specs/transparent.yaml trains the same unchanged file on two workers
with two replicas each, to the same loss, and resumes within an epoch after a failure.
"""

import argparse

import keras
from sklearn.datasets import load_digits

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=20)
options = parser.parse_args()

keras.utils.set_random_seed(1)
images, labels = load_digits(return_X_y=True)
images = (images / 16.0).astype("float32").reshape(-1, 8, 8, 1)

model = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        keras.layers.Conv2D(32, 3, activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dense(10),
    ]
)
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
model.fit(images[:1536], labels[:1536], batch_size=64, epochs=options.epochs, verbose=2)
loss, accuracy = model.evaluate(images[1536:], labels[1536:], batch_size=64, verbose=0)
print(f"test accuracy {accuracy:.3f}, loss {loss:.4f}")
