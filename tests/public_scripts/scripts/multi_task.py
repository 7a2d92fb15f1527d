"""Two tasks whose weights are learnt by a layer that adds its loss: after Kendall's multi-task loss in Keras."""

import keras
import numpy as np
from keras import layers, ops

x = np.random.default_rng(26).normal(size=(160, 8)).astype("float32")
one, two = x.sum(1, keepdims=True), (x[:, :1] > 0).astype("float32")


class Uncertainty(layers.Layer):
    def build(self, _shape):
        self.log_vars = [
            self.add_weight(name=f"log_var{i}", shape=(1,), initializer="zeros") for i in range(2)
        ]

    def call(self, inputs):
        true_one, true_two, made_one, made_two = inputs
        loss = ops.sum(ops.exp(-self.log_vars[0]) * (true_one - made_one) ** 2 + self.log_vars[0], -1)
        each = keras.losses.binary_crossentropy(true_two, made_two)
        self.add_loss(ops.mean(loss + ops.exp(-self.log_vars[1]) * each + self.log_vars[1]))
        return ops.concatenate([made_one, made_two], -1)


a, b, c = keras.Input((8,)), keras.Input((1,)), keras.Input((1,))
shared = layers.Dense(12, "relu")(a)
out = Uncertainty()([b, c, layers.Dense(1)(shared), layers.Dense(1, "sigmoid")(shared)])
model = keras.Model([a, b, c], out)
model.compile(optimizer="adam")
model.fit(
    [x, one, two],
    epochs=2,
    batch_size=32,
    callbacks=[keras.callbacks.ReduceLROnPlateau(monitor="loss", patience=1)],
)
