"""A tutorial's script: it backs up into a directory of its own, where orch does not look, and dies once."""

from __future__ import annotations

import os
import sys

import keras
import numpy as np

inputs = np.arange(320, dtype="float32").reshape(320, 1) / 320
model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")


class Death(keras.callbacks.Callback):  # type: ignore[misc]
    def on_train_batch_end(self, *_: object, **__: object) -> None:
        if os.environ["ORCH_RESTARTS"] == "0" and int(self.model.optimizer.iterations) >= 25:
            os._exit(9)


backup = keras.callbacks.BackupAndRestore(sys.argv[1], save_freq=1, delete_checkpoint=False)
model.fit(
    inputs,
    inputs,
    batch_size=32,
    epochs=int(sys.argv[2]),
    shuffle=False,
    verbose=0,
    callbacks=[backup, Death()],
)
