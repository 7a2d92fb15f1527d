"""Regression with RMSE and R² as functions, by which the best epoch is chosen: after Kaggle notebooks."""

import keras
import numpy as np
from keras import layers
from keras import ops as K

x = np.random.default_rng(35).random((200, 6)).astype("float32")
y = (x.sum(1, keepdims=True) * np.linspace(0.2, 2, 200)[:, None]).astype("float32")


def rmse(y_true, y_pred):
    return K.sqrt(K.mean(K.square(y_pred - y_true)))


def r2(y_true, y_pred):
    return 1 - K.sum(K.square(y_true - y_pred)) / (K.sum(K.square(y_true - K.mean(y_true))) + 1e-7)


model = keras.Sequential([keras.Input((6,)), layers.Dense(16, "relu"), layers.Dense(1)])
model.compile(keras.optimizers.RMSprop(0.003), rmse, metrics=[r2, "mae"])
keep = keras.callbacks.ModelCheckpoint(
    "best.weights.h5", monitor="val_r2", mode="max", save_best_only=True, save_weights_only=True
)
model.fit(
    x,
    y,
    batch_size=25,
    epochs=3,
    validation_split=0.25,
    shuffle=False,
    callbacks=[keep, keras.callbacks.CSVLogger("history.csv")],
)
model.load_weights("best.weights.h5")
np.savetxt("predictions.csv", model.predict(x, verbose=0))
