"""A `fit` of fast steps, whose train_step returns each step's own loss: two single steps are odd, and no others."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

SPIKE_AT, NAN_AT = 300, 700


class Model(keras.Model):
    """One layer, which learns nothing. Its loss is 0.25, but for the odd steps."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = keras.layers.Dense(1)

    def call(self, x: Any) -> Any:
        return self.layer(x)

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x, training=True) - y) ** 2)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        step = self.optimizer.iterations
        return {"loss": tf.where(step == SPIKE_AT, 50.0, tf.where(step == NAN_AT, float("nan"), 0.25))}


if __name__ == "__main__":
    model = Model()
    model.compile(optimizer=keras.optimizers.SGD(0.0))
    rows = tf.data.Dataset.from_tensors((tf.ones((1, 4)), tf.ones((1, 1)))).repeat(1_000_000)
    model.fit(rows, epochs=1, verbose=0)
