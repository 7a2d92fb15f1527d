"""Fits whose first step is proved: equal ones, one that draws noise, and one that is shared wrongly."""

import json

import keras
import numpy as np
import tensorflow as tf
from keras import layers

rng = np.random.default_rng(0)
X = rng.normal(size=(60, 6)).astype("float32")
Y = (X.sum(1, keepdims=True) > 0).astype("float32")


class Centred(layers.RandomFlip):
    """A layer that changes images: replicas take it for one that works on each image by itself, which it does not."""

    def get_random_transformation(self, *_args, **_kwargs):
        return None

    def transform_images(self, images, transformation, training=True):
        return images - tf.reduce_mean(images, 0, keepdims=True)


def trained(*inner, fits=1):
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((6,)), layers.Dense(5, "tanh"), *inner, layers.Dense(1, "sigmoid")])
    model.compile("adam", "dice" if fits > 1 else "mse", metrics=["mae"])
    for _ in range(fits):
        history = model.fit(X, Y, batch_size=20, shuffle=False, verbose=0).history
    weights = [float(np.abs(each).sum()) for each in model.get_weights()]
    print(
        json.dumps({"names": sorted(history), "steps": int(model.optimizer.iterations), "weights": weights}),
        flush=True,
    )


trained(fits=2)
trained(layers.BatchNormalization(), layers.Dropout(0.3))
trained(layers.GaussianNoise(0.3))
trained(layers.Reshape((5, 1, 1)), Centred(), layers.Flatten())
print("not reached")
