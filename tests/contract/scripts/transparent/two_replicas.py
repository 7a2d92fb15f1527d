"""make_parallel: a model that was made and trained by one device goes on by two. The argument: which Keras."""

import importlib
import json
import sys

import numpy as np

from orchestrator.keras import make_parallel

keras = importlib.import_module(sys.argv[1])
keras.utils.set_random_seed(1)
rng = np.random.default_rng(0)
x = rng.normal(size=(64, 8)).astype("float32")
y = (x.sum(1, keepdims=True) > 0).astype("float32")


def network():
    inputs = keras.Input((8,))
    hidden = keras.layers.Dense(8, activation="relu")(inputs)
    return keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(hidden))


single = network()
single.compile(keras.optimizers.SGD(0.5), "binary_crossentropy")
single.fit(x, y, batch_size=16, epochs=1, verbose=0, shuffle=False)
parallel = make_parallel(single, 2)
same = all(np.array_equal(a, b) for a, b in zip(single.get_weights(), parallel.get_weights()))
late = make_parallel(single)
late.compile(keras.optimizers.SGD(0.5), "binary_crossentropy", metrics=[keras.metrics.BinaryAccuracy()])
losses = [
    model.fit(x, y, batch_size=16, epochs=2, verbose=0, shuffle=False).history["loss"][-1]
    for model in (single, parallel, late)
]
try:
    make_parallel(single, 3)
    refused = None
except ValueError as e:
    refused = str(e)
replicas = parallel.distribute_strategy.num_replicas_in_sync
print(json.dumps({"same": same, "losses": losses, "replicas": replicas, "refused": refused}))
