"""What `model` of Keras 3 can do, under MultiWorkerMirroredStrategy; prints one line of JSON at the end."""

import hashlib
import json

import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()

import keras  # noqa: E402
import numpy as np  # noqa: E402

keras.utils.set_random_seed(3)
rng = np.random.default_rng(0)
x = rng.normal(size=(128, 6)).astype("float32")
y = (x.sum(1) > 0).astype("float32")
with strategy.scope():
    model = keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(8),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])

first = model.fit(x, y, batch_size=16, epochs=2, validation_data=(x[:50], y[:50]), verbose=0)
data = tf.data.Dataset.from_tensor_slices((x, y)).batch(16)
second = model.fit(data, epochs=1, verbose=0, validation_data=data)
evaluated = model.evaluate(x[:50], y[:50], batch_size=16, verbose=0)
predicted = model.predict(x[:30], batch_size=8, verbose=0)


def trained(steps_per_execution: int) -> list[float]:
    """Repeat the training, and return its exact result. Eight steps leave an incomplete third execution of three."""
    keras.utils.set_random_seed(4)
    with strategy.scope():
        fresh = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
        fresh.compile("adam", "mse", steps_per_execution=steps_per_execution)
    history = fresh.fit(data, epochs=1, verbose=0).history
    return [*history["loss"], float(fresh.optimizer.iterations.numpy())]


weights = b"".join(np.asarray(w).tobytes() for w in model.get_weights())
figures = [*first.history["loss"], *first.history["val_loss"], *second.history["loss"], *evaluated]
print(
    json.dumps(
        {
            "weights": hashlib.sha256(weights).hexdigest(),
            "figures": [round(float(f), 5) for f in figures],
            "several": [trained(1), trained(3)],
            "predicted": list(predicted.shape),
            "steps": int(model.optimizer.iterations.numpy()),
        }
    ),
    flush=True,
)
