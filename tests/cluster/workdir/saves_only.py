"""A script that saves where orch looks, restores nothing, and dies once."""

from __future__ import annotations

import os

import keras
import numpy as np

inputs = np.arange(320, dtype="float32").reshape(320, 1) / 320
model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")


class Death(keras.callbacks.Callback):  # type: ignore[misc]
    def on_train_batch_end(self, *_: object, **__: object) -> None:
        if os.environ["ORCH_RESTARTS"] == "0" and int(self.model.optimizer.iterations) >= 25:
            os._exit(9)


saves = keras.callbacks.ModelCheckpoint(os.environ["ORCH_CHECKPOINT_DIR"] + "/model.keras")
model.fit(inputs, inputs, batch_size=32, epochs=4, verbose=0, callbacks=[saves, Death()])
