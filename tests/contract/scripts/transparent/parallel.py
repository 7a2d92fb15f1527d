"""make_parallel in the articles' order, and the other way round. The arguments: which Keras, and how many replicas.

One model, whichever name it is trained, evaluated and saved by; and the same numbers as a model that stays single.
"""

import importlib
import json
import os
import sys
import tempfile

import numpy as np
import tensorflow as tf

from orchestrator.keras import make_parallel, multi_gpu_model

keras, replicas = importlib.import_module(sys.argv[1]), int(sys.argv[2])
rng = np.random.default_rng(0)
x = {name: rng.normal(size=(70, 8)).astype("float32") for name in ("left", "right")}
y = {
    "sign": (x["left"].sum(1, keepdims=True) > 0).astype("float32"),
    "sum": x["right"].sum(1, keepdims=True),
}


def network():
    keras.utils.set_random_seed(1)
    left, right = keras.Input((8,), name="left"), keras.Input((8,), name="right")
    both = keras.layers.Concatenate()([keras.layers.Dense(4, "tanh")(part) for part in (left, right)])
    normal = keras.layers.BatchNormalization(synchronized=True)(both)
    outputs = {
        "sign": keras.layers.Dense(1, "sigmoid", name="sign")(normal),
        "sum": keras.layers.Dense(1, name="sum")(normal),
    }
    return keras.Model({"left": left, "right": right}, outputs)


def compiled(model):
    losses = {"sign": "binary_crossentropy", "sum": "mse"}
    model.compile(keras.optimizers.SGD(0.05), losses, metrics={"sign": ["accuracy"]})
    return model


def trained(model):
    return model.fit(x, y, batch_size=30, epochs=2, verbose=0, shuffle=False).history["loss"]


def state(model):
    loss = model.evaluate(x, y, batch_size=64, verbose=0)[0]
    predicted = model.predict(x, verbose=0)["sum"]
    path = os.path.join(tempfile.mkdtemp(), "model.keras")
    model.save(path)
    saved = keras.models.load_model(path).predict(x, verbose=0)["sum"]
    return [float(loss), float(np.abs(predicted).sum()), float(np.abs(saved).sum())]


plain = compiled(network())
expected = [trained(plain), state(plain), trained(plain)]

native = None
if replicas == 3:  # the others are compared with a single device
    with tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(replicas)]).scope():
        mirrored = compiled(network())
    native = [trained(mirrored), state(mirrored), trained(mirrored)]

base = network()
parallel = compiled(multi_gpu_model(base, gpus=replicas))
ways = {"parallel first": [trained(parallel), state(base), trained(parallel)]}

base = compiled(network())
losses = trained(base)
parallel = make_parallel(base, replicas)
ways["base first"] = [losses, state(parallel), trained(parallel)]

base = compiled(network())
parallel = make_parallel(base, replicas)
ways["base after"] = [trained(base), state(parallel), trained(base)]

refused = []
for wrong in (4, [1.0], 1.5, True):
    try:
        multi_gpu_model(base, gpus=wrong)
    except ValueError as e:
        refused.append(str(e))
other = trained(make_parallel(compiled(network()), 3 if replicas < 3 else 2))
used = parallel.distribute_strategy.num_replicas_in_sync
result = {
    "expected": expected,
    "native": native,
    "ways": ways,
    "replicas": used,
    "refused": refused,
    "other": other,
}
print(json.dumps(result))
