"""Restores and saves its weights as Keras 3 does. `--optimizer` is the change between two runs."""

from __future__ import annotations

import argparse
import glob
import os
import time
from typing import Any

import keras
import numpy as np


class Slowly(keras.callbacks.Callback):  # type: ignore[misc,unused-ignore]
    """Leaves a heartbeat the time to see the first steps."""

    def on_train_batch_end(self, *_: Any, **__: Any) -> None:
        time.sleep(0.1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--optimizer", default="adam")
    options = parser.parse_args()
    directory = os.environ["ORCH_CHECKPOINT_DIR"]
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.get(options.optimizer), "mse")
    model.optimizer.build(model.trainable_variables)
    saved = sorted(glob.glob(os.path.join(directory, "*.weights.h5")))
    if saved:
        model.load_weights(saved[-1])
    x, y = np.zeros((64, 4)), np.zeros((64, 1))
    for epoch in range(1, 4):
        model.fit(x, y, batch_size=8, verbose=0, callbacks=[Slowly()])
        model.save_weights(os.path.join(directory, f"ckpt_{epoch:04d}.weights.h5"))


if __name__ == "__main__":
    main()
