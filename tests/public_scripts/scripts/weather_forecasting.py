"""Windows by timeseries_dataset_from_array and an LSTM, the best weights kept: after keras.io's weather forecasting."""

import keras
import numpy as np

series = np.cumsum(np.random.default_rng(10).normal(size=(420, 5)), 0).astype("float32")
mean, std = series[:300].mean(0), series[:300].std(0)
series = (series - mean) / std
past, future, step, batch_size = 12, 4, 2, 32
train = keras.preprocessing.timeseries_dataset_from_array(
    series[:280],
    series[past + future : 300, 1],
    sequence_length=past // step,
    sampling_rate=step,
    batch_size=batch_size,
)
validation = keras.preprocessing.timeseries_dataset_from_array(
    series[300:400],
    series[300 + past + future :, 1],
    sequence_length=past // step,
    sampling_rate=step,
    batch_size=batch_size,
)
for inputs, _ in train.take(1):
    shape = inputs.shape
inputs = keras.layers.Input(shape=(shape[1], shape[2]))
model = keras.Model(inputs=inputs, outputs=keras.layers.Dense(1)(keras.layers.LSTM(8)(inputs)))
model.compile(optimizer=keras.optimizers.Adam(learning_rate=0.001), loss="mse")
path = "model_checkpoint.weights.h5"
stop = keras.callbacks.EarlyStopping(monitor="val_loss", min_delta=0, patience=5)
keep = keras.callbacks.ModelCheckpoint(
    monitor="val_loss", filepath=path, verbose=1, save_weights_only=True, save_best_only=True
)
model.fit(train, epochs=2, validation_data=validation, callbacks=[stop, keep])
