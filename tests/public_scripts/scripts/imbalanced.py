"""Class weights, an initial bias, many metrics, the best weights: after TensorFlow's imbalanced data tutorial."""

import keras
import numpy as np

x = np.random.default_rng(25).normal(size=(240, 9)).astype("float32")
y = (x[:, 0] + x[:, 1] > 1.8).astype("float32")
bias = keras.initializers.Constant(float(np.log(y.sum() / (len(y) - y.sum()))))
metrics = [
    keras.metrics.TruePositives(name="tp"),
    keras.metrics.FalsePositives(name="fp"),
    keras.metrics.Precision(name="precision"),
]
metrics += [
    keras.metrics.Recall(name="recall"),
    keras.metrics.AUC(name="prc", curve="PR"),
    keras.metrics.MeanSquaredError(name="Brier score"),
]
model = keras.Sequential(
    [
        keras.Input((9,)),
        keras.layers.Dense(16, "relu"),
        keras.layers.Dense(1, "sigmoid", bias_initializer=bias),
    ]
)
model.compile(
    keras.optimizers.Adam(learning_rate=1e-3), keras.losses.BinaryFocalCrossentropy(gamma=2), metrics=metrics
)
stop = keras.callbacks.EarlyStopping(
    monitor="val_prc", verbose=1, patience=1, mode="max", restore_best_weights=True
)
weights = {0: len(y) / (2 * (len(y) - y.sum())), 1: len(y) / (2 * y.sum())}
model.fit(x, y, batch_size=48, epochs=3, callbacks=[stop], validation_split=0.2, class_weight=weights)
