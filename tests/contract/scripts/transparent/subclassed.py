"""A subclassed model; tf.data from memory, shuffled anew in each epoch, with a last batch that is smaller."""

import json

import tensorflow as tf
from sklearn.datasets import load_digits

tf.keras.utils.set_random_seed(3)
images, labels = load_digits(return_X_y=True)
images, labels = (images[:1000] / 16.0).astype("float32"), labels[:1000]


class Net(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden = tf.keras.layers.Dense(32, activation="relu")
        self.head = tf.keras.layers.Dense(10)

    def call(self, x):
        return self.head(self.hidden(x))


data = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(1000, seed=5).batch(80)
model = Net()
model.compile("adam", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
history = model.fit(data, epochs=4, verbose=0)
loss = model.evaluate(images, labels, batch_size=100, verbose=0)
print(json.dumps({"loss": loss, "epochs": history.history["loss"]}))
