"""A classifier with everything whose state a step changes: weights, Adam, moving averages, dropout, metrics."""

import sys
import time

import keras
import numpy as np

keras.utils.set_random_seed(3)
generator = np.random.default_rng(5)
x = generator.normal(size=(320, 8)).astype("float32")
y = (x.sum(axis=1) > 0).astype("int32")
model = keras.Sequential(
    [
        keras.Input((8,)),
        keras.layers.Dense(16, activation="relu"),
        keras.layers.Dropout(0.3),
        keras.layers.Dense(2, activation="softmax"),
    ]
)
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
slowly = keras.callbacks.LambdaCallback(on_train_batch_begin=lambda _batch, logs=None: time.sleep(0.02))
model.fit(x, y, batch_size=16, epochs=3, validation_data=(x[:64], y[:64]), callbacks=[slowly], verbose=0)
np.savez(sys.argv[1], *map(np.asarray, model.get_weights()))
