"""A random search with its defaults, which goes on where it was interrupted: after TensorFlow's KerasTuner tutorial."""

import keras
import keras_tuner as kt
import numpy as np

x = np.random.default_rng(16).random((192, 8), dtype="float32")
y = (x.sum(1, keepdims=True) > 4).astype("float32")


def model_builder(hp):
    model = keras.Sequential([keras.Input((8,))])
    model.add(keras.layers.Dense(units=hp.Int("units", min_value=4, max_value=16, step=4), activation="relu"))
    model.add(keras.layers.Dense(1, "sigmoid"))
    rate = hp.Choice("learning_rate", values=[1e-2, 1e-3, 1e-4])
    model.compile(keras.optimizers.Adam(rate), "binary_crossentropy", metrics=["accuracy"])
    return model


tuner = kt.RandomSearch(
    model_builder, objective="val_accuracy", max_trials=3, seed=4, directory="my_dir", project_name="intro"
)
stop_early = keras.callbacks.EarlyStopping(monitor="val_loss", patience=5)
tuner.search(x, y, epochs=2, batch_size=32, validation_split=0.25, callbacks=[stop_early])
best = tuner.get_best_hyperparameters(num_trials=1)[0]
model = tuner.hypermodel.build(best)
model.fit(x, y, epochs=2, batch_size=32, validation_split=0.25)
