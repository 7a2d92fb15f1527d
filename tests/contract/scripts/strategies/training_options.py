"""Options of Keras 3's `compile` under a strategy, each against a model that one process trains without any.

    python training_options.py mirrored|multi_worker_mirrored|central_storage CASE,…

Prints one line of JSON: for each case the largest difference of the weights, relative to the largest weight, and the
optimizers' steps; or the error.
"""

import json
import sys

import tensorflow as tf

kind, wanted = sys.argv[1], sys.argv[2].split(",")
strategy = {
    "mirrored": lambda: tf.distribute.MirroredStrategy(),
    "multi_worker_mirrored": lambda: tf.distribute.MultiWorkerMirroredStrategy(),
    "central_storage": lambda: tf.distribute.experimental.CentralStorageStrategy(),
}[kind]()

import keras  # noqa: E402
import numpy as np  # noqa: E402

from orchestrator.task.tracebacks import last_line  # noqa: E402

rng = np.random.default_rng(0)
X = rng.normal(size=(128, 6)).astype("float32")
Y = (X.sum(1, keepdims=True) > 0).astype("float32")
BATCH = 32


def layers():
    return [
        keras.Input((6,)),
        keras.layers.Dense(8, activation="tanh"),
        keras.layers.Dense(1, activation="sigmoid", dtype="float32"),
    ]


def fitted(model, **options):
    model.compile(loss="binary_crossentropy", metrics=["accuracy"], **options)
    model.fit(X, Y, batch_size=BATCH, epochs=3, shuffle=False, verbose=0)
    return model, [model.optimizer]


class TwoOptimizers(keras.Model):
    """Two parts, each with an optimizer of its own."""

    def __init__(self):
        super().__init__()
        self.lower, self.upper = keras.Sequential(layers()[:2]), keras.layers.Dense(1, activation="sigmoid")

    def compile(self, lower, upper):
        super().compile()
        self.lower_optimizer, self.upper_optimizer = lower, upper

    def call(self, x):
        return self.upper(self.lower(x))

    def train_step(self, data):
        x, y = data
        with tf.GradientTape(persistent=True) as tape:
            each = keras.losses.binary_crossentropy(y, self(x, training=True))
            loss = tf.reduce_sum(each) / BATCH  # a strategy adds the gradients of the replicas
        for part, optimizer in ((self.lower, self.lower_optimizer), (self.upper, self.upper_optimizer)):
            variables = part.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return {"loss": loss}


def several_optimizers(*, built=True):
    model = TwoOptimizers()
    model.lower.build((None, 6))
    model.upper.build((None, 8))
    model.compile(keras.optimizers.Adam(0.02), keras.optimizers.SGD(0.1, momentum=0.9))
    if built:
        model.lower_optimizer.build(model.lower.trainable_variables)
        model.upper_optimizer.build(model.upper.trainable_variables)
    model.fit(X, Y, batch_size=BATCH, epochs=3, shuffle=False, verbose=0)
    return model, [model.lower_optimizer, model.upper_optimizer]


def mixed(policy):
    """Train with this policy for the whole model. With float16, `compile` scales the loss by itself."""
    keras.config.set_dtype_policy(policy)
    try:
        return fitted(keras.Sequential(layers()), optimizer=keras.optimizers.Adam(0.02))
    finally:
        keras.config.set_dtype_policy("float32")


def adam(**options):
    return keras.optimizers.Adam(0.02, **options)


CASES = {
    "plain": lambda: fitted(keras.Sequential(layers()), optimizer=adam()),
    "mixed_float16": lambda: mixed("mixed_float16"),
    "mixed_bfloat16": lambda: mixed("mixed_bfloat16"),
    "jit_compile": lambda: fitted(keras.Sequential(layers()), optimizer=adam(), jit_compile=True),
    "accumulation": lambda: fitted(keras.Sequential(layers()), optimizer=adam(gradient_accumulation_steps=2)),
    "loss_scale": lambda: fitted(
        keras.Sequential(layers()),
        optimizer=keras.optimizers.LossScaleOptimizer(adam(), initial_scale=1024.0),
    ),
    "several_optimizers": several_optimizers,
    "optimizers_not_built": lambda: several_optimizers(built=False),
    "several_steps": lambda: fitted(keras.Sequential(layers()), optimizer=adam(), steps_per_execution=2),
}


def trained(case):
    keras.utils.set_random_seed(7)
    model, optimizers = CASES[case]()
    weights = np.concatenate([np.asarray(w, "float64").ravel() for w in model.get_weights()])
    return weights, [int(optimizer.iterations.numpy()) for optimizer in optimizers]


def compared(case):
    expected, steps = trained(case)
    try:
        with strategy.scope():
            weights, own = trained(case)
    except Exception as e:
        return {"error": last_line(e)}
    return {
        "difference": float(np.abs(weights - expected).max() / np.abs(expected).max()),
        "steps": [steps, own],
    }


print(
    json.dumps(
        {"replicas": strategy.num_replicas_in_sync, "cases": {case: compared(case) for case in wanted}}
    ),
    flush=True,
)
