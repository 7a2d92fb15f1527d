"""An ordinary script whose training depends on batch size and learning rate.

Its argument is the momentum.
"""

import json
import sys

import keras
import numpy as np

keras.utils.set_random_seed(3)
rng = np.random.default_rng(0)
x = rng.normal(size=(512, 6)).astype("float32")
y = (x @ rng.normal(size=(6, 1))).astype("float32")
model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.02, momentum=float(sys.argv[1])), "mse")
history = model.fit(x, y, batch_size=16, epochs=6, verbose=0).history
rate = float(keras.ops.convert_to_numpy(model.optimizer.learning_rate))
loss = float(model.evaluate(x, y, verbose=0))
weights = [round(float(w), 6) for w in model.get_weights()[0].reshape(-1)[:8]]
print(json.dumps({"loss": loss, "epochs": history["loss"], "rate": rate, "weights": weights}))
