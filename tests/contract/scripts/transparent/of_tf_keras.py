"""What tf_keras does by code of its own: figures of sums, weights that are no numbers, statistics of a whole batch."""

import json

import numpy as np
import tensorflow as tf
import tf_keras as keras
from tf_keras import layers

rng = np.random.default_rng(0)
X = rng.normal(size=(33, 6)).astype("float32")  # the last batch has one example
Y = X.sum(1, keepdims=True)
keras.utils.set_random_seed(3)

words = np.where(X[:, 0] > 0, "good day", "bad night")
texts, parts = layers.TextVectorization(output_mode="multi_hot"), layers.Discretization(num_bins=4)
texts.adapt(words)
parts.adapt(X[:, :1])
inputs = {"words": keras.Input((), dtype="string", name="words"), "x": keras.Input((1,), name="x")}
encoded = layers.CategoryEncoding(4, output_mode="multi_hot")(parts(inputs["x"]))
adapted = keras.Model(inputs, layers.Dense(1)(layers.Concatenate()([texts(inputs["words"]), encoded])))
adapted.compile("sgd", "mse")
data = tf.data.Dataset.from_tensor_slices(({"words": words, "x": X[:, :1]}, Y)).batch(16)
loss = adapted.fit(data, verbose=0).history["loss"]
print(json.dumps({"loss": loss, "weights": np.ravel(adapted.layers[-1].get_weights()[0]).tolist()}))

normalized = [
    layers.BatchNormalization(momentum=0.5, synchronized=True),
    layers.experimental.SyncBatchNormalization(momentum=0.5),
]
model = keras.Sequential([keras.Input((6,)), *normalized, layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.001), keras.losses.MeanSquaredError(reduction="sum"))
loss = model.fit(X, Y, batch_size=16, shuffle=False, verbose=0).history["loss"]
weights = np.concatenate([np.ravel(each) for each in model.get_weights()]).tolist()
print(json.dumps({"loss": loss, "weights": weights}))


class WithoutCall(keras.Model):
    def __init__(self):
        super().__init__()
        self.net = keras.Sequential([keras.Input((6,)), layers.Dense(1)])

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = keras.losses.MeanSquaredError()(y, self.net(x))
        self.optimizer.minimize(loss, self.net.trainable_variables, tape)
        return {"loss": loss}


model = WithoutCall()
model.compile(keras.optimizers.SGD(0.01))
loss = model.fit(X, Y, batch_size=16, shuffle=False, verbose=0).history["loss"]
print(json.dumps({"loss": loss, "weights": np.ravel(model.net.get_weights()[0]).tolist()}))
