"""Trains a small model, saves after each epoch, and goes on where it was."""

import os
import sys
import time

import keras
import numpy as np

keras.utils.set_random_seed(7)
x = np.random.default_rng(1).normal(size=(64, 8)).astype("float32")
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4), keras.layers.Dense(1)])
model.compile("sgd", "mse")
slow = keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: time.sleep(float(sys.argv[2])))
backup = keras.callbacks.BackupAndRestore(os.environ["ORCH_CHECKPOINT_DIR"], delete_checkpoint=False)
said = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, _: print("epoch", epoch, flush=True))
print("generation", os.environ["ORCH_GENERATION"], "restarts", os.environ["ORCH_RESTARTS"], flush=True)
model.fit(x, x[:, :1], batch_size=16, epochs=int(sys.argv[1]), callbacks=[backup, said, slow], verbose=0)
print("done at", int(model.optimizer.iterations), flush=True)
