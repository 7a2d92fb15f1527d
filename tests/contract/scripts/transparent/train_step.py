"""A train_step of its own, with a loss computed by hand: a plain mean over the batch."""

import json

import keras
import tensorflow as tf
from sklearn.datasets import load_digits

keras.utils.set_random_seed(9)
images, labels = load_digits(return_X_y=True)
images, labels = (images[:1024] / 16.0).astype("float32"), labels[:1024]


class Classifier(keras.Model):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.mean = keras.metrics.Mean(name="loss")

    @property
    def metrics(self):
        return [self.mean]

    def call(self, x):
        return self.inner(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            logits = self.inner(x, training=True)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        self.mean.update_state(loss)
        return {"loss": self.mean.result()}


inner = keras.Sequential([keras.Input((64,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(10)])
model = Classifier(inner)
model.compile(keras.optimizers.SGD(0.5))
history = model.fit(images, labels, batch_size=64, epochs=4, shuffle=False, verbose=0)
logits = model.predict(images, batch_size=128, verbose=0)
loss = float(tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)))
print(json.dumps({"loss": loss, "epochs": history.history["loss"]}))
