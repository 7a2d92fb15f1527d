"""Fits whose first step is proved: equal ones, one that draws noise, and one that is shared wrongly."""

import json

import keras
import numpy as np
import tensorflow as tf
from keras import layers

rng = np.random.default_rng(0)
X = rng.normal(size=(60, 6)).astype("float32")
Y = (X.sum(1, keepdims=True) > 0).astype("float32")


class Centred(layers.RandomFlip):
    """A layer that changes images: replicas take it for one that works on each image by itself, which it does not."""

    def get_random_transformation(self, *_args, **_kwargs):
        return None

    def transform_images(self, images, transformation, training=True):
        return images - tf.reduce_mean(images, 0, keepdims=True)


def trained(*inner, fits=1):
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((6,)), layers.Dense(5, "tanh"), *inner, layers.Dense(1, "sigmoid")])
    model.compile("adam", "dice" if fits > 1 else "mse", metrics=["mae"])
    for _ in range(fits):
        history = model.fit(X, Y, batch_size=20, shuffle=False, verbose=0).history
    weights = [float(np.abs(each).sum()) for each in model.get_weights()]
    print(
        json.dumps({"names": sorted(history), "steps": int(model.optimizer.iterations), "weights": weights}),
        flush=True,
    )


class Updating(keras.Model):
    """A step that updates by more than `assign`, draws by TensorFlow's generator, and makes a gradient by hand."""

    def __init__(self, draws=False):
        super().__init__()
        self.w = self.add_weight(shape=(6, 1), initializer="zeros", name="w")
        self.draws = draws
        first = tf.VariableAggregation.ONLY_FIRST_REPLICA
        self.seen = tf.Variable(tf.zeros([2]), trainable=False, aggregation=first)
        self.queue = tf.queue.FIFOQueue(100, [tf.int32])
        self.generator = tf.random.Generator.from_seed(1)
        self.told = [keras.metrics.Mean(name="loss")]

    @property
    def metrics(self):
        return self.told

    def call(self, x):
        return tf.matmul(x, self.w)

    def train_step(self, data):
        x, y = data
        error = self(x) - y
        if self.draws:
            error += self.generator.normal([1, 1])
        gradient = tf.matmul(x, error, transpose_a=True) / tf.cast(tf.shape(x)[0], tf.float32)
        self.optimizer.apply_gradients([(gradient, self.w)])
        self.told[0].update_state(tf.reduce_mean(tf.square(error)))
        one = tf.IndexedSlices(tf.ones([1]), tf.constant([1]))
        tf.cond(tf.reduce_sum(self.seen) >= 0.0, lambda: self.queue.enqueue(1), tf.no_op)
        self.seen.scatter_add(one)
        return {"loss": self.told[0].result()}


def updated(**given):
    model = Updating(**given)
    model.compile("sgd")
    model.fit(X, Y, batch_size=20, shuffle=False, verbose=0)
    counts = {"scattered": float(model.seen[1]), "queued": int(model.queue.size())}
    print(json.dumps({"steps": int(model.optimizer.iterations), **counts}), flush=True)


class Counting(keras.Model):
    """A step that calls Python."""

    called = 0

    def __init__(self):
        super().__init__()
        self.inner = layers.Dense(1)

    def call(self, x):
        return self.inner(x)

    def counted(self, x):
        Counting.called += 1
        return x

    def train_step(self, data):
        x, y = data
        x = tf.ensure_shape(tf.numpy_function(self.counted, [x], tf.float32), x.shape)
        return super().train_step((x, y))


def counted():
    model = Counting()
    model.compile("sgd", "mse")
    model.fit(X, Y, batch_size=20, shuffle=False, verbose=0)
    print(json.dumps({"steps": int(model.optimizer.iterations), "called": model.called}), flush=True)


def settled():
    """Begin where the gradient of the batch is nothing but rounding."""
    model = keras.Sequential([keras.Input((6,)), layers.Dense(1, use_bias=False)])
    model.compile(keras.optimizers.SGD(1e-6), "mse")
    model.set_weights([np.linalg.lstsq(X.astype("float64"), Y, rcond=None)[0]])
    model.fit(X, Y, batch_size=60, shuffle=False, verbose=0)
    print(json.dumps({"steps": int(model.optimizer.iterations)}), flush=True)


def of_texts():
    """Begin with texts, which the replicas have to send each other."""
    words = np.where(X[:, :2] > 0, "positive", "not")
    inputs = keras.Input((2,), dtype="string")
    numbers = layers.StringLookup(vocabulary=["positive", "not"])(inputs)
    model = keras.Model(inputs, layers.Dense(1)(layers.Flatten()(layers.Embedding(3, 2)(numbers))))
    model.compile("sgd", "mse")
    model.fit(tf.data.Dataset.from_tensor_slices((words, Y)).batch(20), verbose=0)
    print(json.dumps({"steps": int(model.optimizer.iterations)}), flush=True)


class Two(keras.Model):
    """A step with two gradients, of which the second one is shared wrongly."""

    def __init__(self):
        super().__init__()
        self.one = keras.Sequential([keras.Input((6,)), layers.Dense(1)], name="one")
        wrong = [layers.Reshape((5, 1, 1)), Centred(), layers.Flatten()]
        self.two = keras.Sequential(
            [keras.Input((6,)), layers.Dense(5, "tanh"), *wrong, layers.Dense(1)], name="two"
        )

    def train_step(self, data):
        x, y = data
        for network in (self.one, self.two):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(network(x, training=True) - y))
            weights = network.trainable_variables
            self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        return {"loss": loss}


trained(fits=2)
trained(layers.BatchNormalization(), layers.Dropout(0.3))
trained(layers.GaussianNoise(0.3))
updated()
updated(draws=True)
counted()
settled()
of_texts()
keras.config.set_dtype_policy("mixed_bfloat16")
inputs = keras.Input((6,))
words = layers.Dense(8)(layers.Reshape((3, 2))(inputs))
attended = layers.Flatten()(
    layers.LayerNormalization()(words + layers.MultiHeadAttention(2, 4)(words, words))
)
model = keras.Model(inputs, layers.Dense(1, dtype="float32")(attended))
model.compile("adam", "mse")
model.fit(X, Y, batch_size=20, verbose=0)
print(json.dumps({"steps": int(model.optimizer.iterations)}), flush=True)
keras.config.set_dtype_policy("float32")
two = Two()
two.compile("sgd")
two.optimizer.build(two.one.trainable_variables + two.two.trainable_variables)
two.fit(X, Y, batch_size=20, verbose=0)
print("not reached")
