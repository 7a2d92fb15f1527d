"""Small scripts in one: each trains a model of some weights, and prints them. The arguments: which ones.

`python cases.py` is what a single process does; under `transparent: true` every line must be the same.
"""

import json
import sys

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

rng = np.random.default_rng(0)
X = rng.normal(size=(100, 6)).astype("float32")
Y = (X.sum(1, keepdims=True) > 0).astype("float32")
CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def network(*inner, last="sigmoid"):
    return keras.Sequential([keras.Input((6,)), layers.Dense(5, "tanh"), *inner, layers.Dense(1, last)])


def trained(model, x=X, y=Y, **given):
    # The last batch has 4 examples, which 3 replicas cannot share evenly.
    history = model.fit(
        x, y, **{"batch_size": 32, "epochs": 1, "shuffle": False, "verbose": 0, **given}
    ).history
    return model, history


def compiled(optimizer="sgd", loss="binary_crossentropy", *inner, **more):
    model = network(*inner)
    model.compile(optimizer, loss, **more)
    return model


@case
def metrics():
    return trained(compiled("adam", metrics=["accuracy", keras.metrics.AUC()]), epochs=2)


@case
def loss_that_is_a_sum():
    return trained(compiled(keras.optimizers.SGD(0.01), keras.losses.BinaryCrossentropy(reduction="sum")))


@case
def add_loss_in_a_layer():
    class Penalty(layers.Layer):
        def call(self, x):
            self.add_loss(0.1 * ops.sum(ops.square(x)))
            self.add_loss(0.3 * ops.mean(ops.abs(x)))
            return x

    return trained(compiled(keras.optimizers.SGD(0.05), "binary_crossentropy", Penalty()))


@case
def regularizers():
    inner = layers.Dense(4, kernel_regularizer="l2", activity_regularizer="l1")
    return trained(compiled(keras.optimizers.SGD(0.05), "binary_crossentropy", inner))


class Own(keras.Model):
    """A model whose subclasses have a train_step."""

    def __init__(self):
        super().__init__()
        self.net = network()
        self.shown = keras.metrics.Mean(name="loss")
        self.penalty = keras.metrics.Sum(name="penalty")

    def call(self, x):
        return self.net(x)

    def applied(self, tape, loss, clip=None):
        gradients = tape.gradient(loss, self.trainable_variables)
        if clip:
            gradients, norm = tf.clip_by_global_norm(gradients, clip)
            self.penalty.update_state(norm)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))


@case
def terms_of_its_own():
    class Model(Own):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                p = self(x, training=True)
                loss = self.compute_loss(y=y, y_pred=p) + 0.1 * tf.reduce_sum(tf.square(p))
                loss += 0.01 * tf.add_n([tf.nn.l2_loss(w) for w in self.trainable_variables])
                loss -= tf.reduce_mean([tf.reduce_mean(tf.abs(p)), 1.0]) / 8
            self.applied(tape, loss, clip=0.3)
            return {"loss": loss, "raw": tf.reduce_sum(p)}

    model = Model()
    model.compile(keras.optimizers.SGD(0.05), "binary_crossentropy")
    return trained(model)


@case
def loss_of_its_own():
    class Model(Own):
        @property
        def metrics(self):
            return [self.shown, self.penalty]

        @tf.function
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                p = self(x, training=True)
                each = keras.losses.binary_crossentropy(y, p)
                loss = tf.reduce_sum(each) / tf.cast(tf.shape(x)[0], tf.float32)
                penalty = 0.5 * tf.reduce_mean(tf.reduce_sum(tf.square(p), axis=1))
                masked = tf.reduce_sum(each * y[:, 0]) / tf.maximum(tf.reduce_sum(y), 1.0)
                loss += penalty + masked
            self.applied(tape, loss, clip=0.3)
            self.shown.update_state(loss)
            self.penalty.update_state(penalty)
            return {m.name: m.result() for m in self.metrics}

    model = Model()
    model.compile(keras.optimizers.SGD(0.05))
    return trained(model)


@case
def half_of_a_mean_and_a_penalty():
    class Model(Own):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                error = tf.reduce_mean(tf.square(y - self(x, training=True)))
                loss = 0.5 * (error + 0.1 * tf.add_n([tf.nn.l2_loss(w) for w in self.trainable_variables]))
            self.applied(tape, loss)
            return {"loss": loss}

    model = Model()
    model.compile(keras.optimizers.SGD(0.1))
    return trained(model)


@case
def sum_under_a_mask():
    model = keras.Sequential(
        [layers.Embedding(7, 4, mask_zero=True), layers.GRU(3, return_sequences=True), layers.Dense(1)]
    )
    model.compile(keras.optimizers.SGD(0.001), keras.losses.MeanSquaredError(reduction="sum"))
    words = rng.integers(0, 7, size=(100, 5))
    return trained(model, words, rng.normal(size=(100, 5, 1)).astype("float32"))


@case
def divided_by_the_replicas():
    class Model(Own):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.nn.compute_average_loss(keras.losses.mean_squared_error(y, self(x, training=True)))
                weights = [tf.nn.l2_loss(w) for w in self.trainable_variables]
                loss += 0.1 * tf.nn.scale_regularization_loss(tf.add_n(weights))
            self.applied(tape, loss)
            return {"loss": loss}

    model = Model()
    model.compile(keras.optimizers.SGD(0.1))
    return trained(model)


@case
def gradients_without_a_tape():
    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.w = self.add_weight(shape=(6, 1), initializer="zeros", name="w")
            self.b = self.add_weight(shape=(1,), initializer="zeros", name="b")

        def call(self, x):
            return ops.matmul(x, self.w) + self.b

        def train_step(self, data):
            x, y = data
            error = self(x) - y
            count = tf.cast(tf.shape(x)[0], tf.float32)
            gradients = [tf.matmul(x, error, transpose_a=True) / count, 0.01 * tf.reduce_sum(error, axis=0)]
            self.optimizer.apply_gradients(zip(gradients, [self.w, self.b]))
            return {"error": tf.reduce_mean(error)}

    model = Model()
    model.compile(keras.optimizers.SGD(0.1))
    return trained(model)


@case
def compute_loss_of_its_own():
    class Model(Own):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            loss = ops.mean(ops.square(y - y_pred))
            self.shown.update_state(loss)
            return loss

    model = Model()
    model.compile("adam")
    return trained(model)


@case
def vae_without_call():
    class VAE(keras.Model):
        def __init__(self):
            super().__init__()
            inputs = keras.Input((6,))
            self.encoder = keras.Model(inputs, [layers.Dense(2)(inputs), layers.Dense(2)(inputs)])
            self.decoder = keras.Sequential([layers.Dense(6, "sigmoid")])  # built by the first step
            self.total = keras.metrics.Mean(name="loss")

        @property
        def metrics(self):
            return [self.total]

        def train_step(self, data):
            with tf.GradientTape() as tape:
                mean, log_var = self.encoder(data)
                made = self.decoder(mean)
                entropy = keras.losses.binary_crossentropy(data[..., None], made[..., None])
                kl = -0.5 * (1 + log_var - ops.square(mean) - ops.exp(log_var))
                loss = ops.mean(ops.sum(entropy, axis=1)) + ops.mean(ops.sum(kl, axis=1))
            gradients = tape.gradient(loss, self.trainable_weights)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_weights))
            self.total.update_state(loss)
            return {"loss": self.total.result()}

    model = VAE()
    model.compile(keras.optimizers.Adam(0.02))
    return trained(model, (X > 0).astype("float32"), None)


@case
def gan_with_a_penalty():
    class GAN(keras.Model):
        def __init__(self):
            super().__init__()
            self.critic = network(last=None)
            self.maker = keras.Sequential([keras.Input((3,)), layers.Dense(6)])

        def compile(self, *optimizers):
            super().compile()
            self.pair = list(optimizers)

        def train_step(self, data):
            z, count = data[:, :3] * 2, tf.shape(data)[0]
            truth = tf.concat([tf.ones((count, 1)), tf.zeros((count, 1))], axis=0)
            bce = keras.losses.BinaryCrossentropy(from_logits=True)
            with tf.GradientTape() as tape:
                first = bce(truth, self.critic(tf.concat([self.maker(z), data], axis=0)))
            weights = self.critic.trainable_weights
            self.pair[0].apply_gradients(zip(tape.gradient(first, weights), weights))
            with tf.GradientTape() as tape:
                with tf.GradientTape() as inner:
                    fake = self.maker(z)
                    inner.watch(fake)
                    scored = self.critic(fake)
                norm = tf.sqrt(tf.reduce_sum(tf.square(inner.gradient(scored, fake)), axis=1) + 1e-6)
                second = bce(tf.zeros((count, 1)), scored) + 0.5 * tf.reduce_mean((norm - 1) ** 2)
            weights = self.maker.trainable_weights
            self.pair[1].apply_gradients(zip(tape.gradient(second, weights), weights))
            return {"first": first, "second": second}

    model = GAN()
    model.compile(keras.optimizers.Adam(0.01), keras.optimizers.Adam(0.02))
    model, history = trained(model, X, None)
    return model, {**history, "updates": [float(each.iterations) for each in model.pair]}


@case
def critic_of_wasserstein():
    # As WGAN-GP: a critic takes three steps for each of the maker. What that draws is made of the data here.
    class WGAN(keras.Model):
        def __init__(self):
            super().__init__()
            # A bias before the mean is taken, or one that the difference of two means cancels, has the gradient zero:
            # Adam would make steps of what rounding leaves of it.
            self.critic = keras.Sequential(
                [keras.Input((6,)), layers.Dense(5, "tanh"), layers.Dense(1, use_bias=False)]
            )
            norm = layers.BatchNormalization(synchronized=True)
            inner = [layers.Dense(5, use_bias=False), norm, layers.LeakyReLU(0.2)]
            self.maker = keras.Sequential([keras.Input((3,)), *inner, layers.Dense(6)])

        def compile(self, *optimizers):
            super().compile()
            self.pair = list(optimizers)

        def penalty(self, real, fake):
            mixed = real + ops.abs(real[:, 5:]) * (fake - real)
            with tf.GradientTape() as tape:
                tape.watch(mixed)
                scored = self.critic(mixed, training=True)
            (found,) = tape.gradient(scored, [mixed])
            return tf.reduce_mean((tf.sqrt(tf.reduce_sum(tf.square(found), axis=[1])) - 1.0) ** 2)

        def train_step(self, data):
            for step in range(3):
                with tf.GradientTape() as tape:
                    fake = self.maker(data[:, step : step + 3], training=True)
                    real_scored = self.critic(data, training=True)
                    loss = tf.reduce_mean(self.critic(fake, training=True)) - tf.reduce_mean(real_scored)
                    loss += 10.0 * self.penalty(data, fake)
                weights = self.critic.trainable_variables
                self.pair[0].apply_gradients(zip(tape.gradient(loss, weights), weights))
            with tf.GradientTape() as tape:
                made = -tf.reduce_mean(self.critic(self.maker(data[:, 3:], training=True), training=True))
            weights = self.maker.trainable_variables
            self.pair[1].apply_gradients(zip(tape.gradient(made, weights), weights))
            return {"critic": loss, "made": made}

    model = WGAN()
    model.compile(*(keras.optimizers.Adam(0.002, beta_1=0.5, beta_2=0.9) for _ in range(2)))
    model, history = trained(model, X, None)
    return model, {**history, "updates": [float(each.iterations) for each in model.pair]}


@case
def clipped_by_the_optimizer():
    return trained(compiled(keras.optimizers.Adam(0.05, global_clipnorm=0.1, weight_decay=0.01)))


@case
def accumulated():
    optimizer = keras.optimizers.SGD(0.2, momentum=0.9, gradient_accumulation_steps=3, clipvalue=0.05)
    return trained(compiled(optimizer), epochs=2)


@case
def moving_average_of_weights():
    return trained(compiled(keras.optimizers.SGD(0.05, use_ema=True, ema_overwrite_frequency=3)), epochs=2)


@case
def scaled_loss():
    return trained(compiled(keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.05, clipnorm=0.1))))


@case
def masked():
    model = keras.Sequential(
        [layers.Embedding(7, 4, mask_zero=True), layers.GRU(3, return_sequences=True), layers.Dense(1)]
    )
    drawn = np.random.default_rng(5)
    model.compile("adam", "mse", weighted_metrics=["mae"])
    return trained(
        model, drawn.integers(0, 7, size=(100, 5)), drawn.normal(size=(100, 5, 1)).astype("float32")
    )


@case
def weights_of_samples():
    loss = keras.losses.BinaryCrossentropy(reduction="mean_with_sample_weight")
    model = compiled("adam", loss, weighted_metrics=["accuracy"])
    return trained(model, sample_weight=np.linspace(0, 1, 100).astype("float32"), epochs=2)


@case
def weights_of_classes():
    model = compiled("adam", weighted_metrics=["accuracy"])
    return trained(model, X, Y[:, 0], class_weight={0: 1.0, 1: 3.0})


@case
def several_inputs_and_outputs():
    a, b = keras.Input((3,), name="a"), keras.Input((3,), name="b")
    both = layers.Concatenate()([layers.Dense(4, "tanh")(a), layers.Dense(4, "tanh")(b)])
    outputs = {
        "sign": layers.Dense(1, "sigmoid", name="sign")(both),
        "two": layers.Dense(2, name="two")(both),
    }
    model = keras.Model({"a": a, "b": b}, outputs)
    losses = {"sign": "binary_crossentropy", "two": "mse"}
    model.compile("adam", losses, loss_weights={"sign": 1.0, "two": 0.3}, metrics={"sign": ["accuracy"]})
    return trained(model, {"a": X[:, :3], "b": X[:, 3:]}, {"sign": Y, "two": X[:, :2]})


@case
def tf_data():
    data = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(100, seed=2).batch(12, drop_remainder=True)
    validation = tf.data.Dataset.from_tensor_slices((X, Y)).batch(33)
    model = compiled("adam", metrics=["accuracy"])
    history = model.fit(
        data.repeat().prefetch(2), steps_per_epoch=5, epochs=2, verbose=0, validation_data=validation
    )
    return model, history.history


@case
def texts_of_unknown_length():
    """No `Input`, and a shuffle whose order a batch that is read to build the model would advance."""
    data = tf.data.Dataset.from_tensor_slices((np.arange(100) % 7 + 1, Y)).shuffle(100, seed=2)
    data = data.map(lambda length, y: (tf.range(length), y)).padded_batch(20)
    model = keras.Sequential([layers.Embedding(8, 4), layers.GlobalAveragePooling1D(), layers.Dense(1)])
    model.compile("adam", "mse")
    return model, model.fit(data, epochs=2, verbose=0).history


@case
def data_of_unknown_length():
    # Where it ends, Keras fails in a step that has counted an update already, and Adam's next ones are smaller.
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(50).filter(lambda *_: True)
    model = compiled(keras.optimizers.Adam(0.05))
    return model, model.fit(data, epochs=3, verbose=0).history


@case
def texts_in_the_model():
    # A batch is as wide as its longest text, which one replica has, and the padding is read as words.
    drawn = np.random.default_rng(1)
    words = [drawn.choice(["good", "bad", "day", "night"], 5 if row % 8 == 1 else 2) for row in range(24)]
    texts = np.array([" ".join(each) for each in words])
    vectors = layers.TextVectorization()
    vectors.adapt(texts)
    given = keras.Input((1,), dtype="string")
    read = layers.GRU(3)(layers.Embedding(20, 4)(vectors(given)))
    model = keras.Model(given, layers.Dense(1)(read))
    model.compile("sgd", "mse")
    counts = np.char.count(texts, "good").astype("float32")
    data = tf.data.Dataset.from_tensor_slices((texts[:, None], counts[:, None])).batch(8)
    return model, model.fit(data, epochs=2, verbose=0).history


@case
def py_dataset():
    class Data(keras.utils.PyDataset):
        def __len__(self):
            return 4

        def __getitem__(self, place):
            return X[place * 30 : place * 30 + 30], Y[place * 30 : place * 30 + 30]

    model = compiled("adam")
    return model, model.fit(Data(), epochs=2, shuffle=False, verbose=0).history


@case
def python_generator():
    def batches():
        while True:
            for place in range(0, 99, 33):
                yield X[place : place + 33], Y[place : place + 33]

    model = compiled("adam")
    return model, model.fit(batches(), steps_per_epoch=3, epochs=2, verbose=0).history


@case
def layer_with_a_state():
    class Centered(layers.Layer):
        def build(self, shape):
            self.mean = self.add_weight(shape=(shape[-1],), initializer="zeros", trainable=False)
            self.seen = self.add_weight(shape=(), initializer="zeros", trainable=False)

        def call(self, x, training=False):
            if training:
                self.mean.assign(0.9 * self.mean + 0.1 * ops.mean(x, axis=0))
                self.seen.assign_add(1.0)
            return x - self.mean

    return trained(compiled("adam", "binary_crossentropy", Centered()))


@case
def loop_of_train_on_batch():
    model, shown = compiled("adam", metrics=["accuracy"]), []
    for place in range(0, 100, 33):
        shown += [float(each) for each in model.train_on_batch(X[place : place + 33], Y[place : place + 33])]
    return model, {"shown": shown}


@case
def fewer_examples_than_replicas():
    model, _ = trained(compiled("sgd", metrics=["accuracy"]), X[:33], Y[:33])
    predicted = [model.predict(X[:1], verbose=0), model.predict(X[:5], batch_size=4, verbose=0)]
    predicted += [model.predict_on_batch(X[:5]), model.predict_on_batch(X[:1])]
    figures = model.evaluate(X[:33], Y[:33], verbose=0) + model.test_on_batch(X[:5], Y[:5])
    return model, {"predicted": np.concatenate(predicted)[:, 0].tolist(), "figures": figures}


@case
def recurrent_model_asked_for_one_example():
    model, _ = trained(compiled("sgd", "binary_crossentropy", layers.RepeatVector(3), layers.LSTM(4)))
    predicted = [model.predict(X[:1], verbose=0), model.predict_on_batch(X[:1])]
    return model, {"predicted": np.concatenate(predicted)[:, 0].tolist()}


@case
def convolutions_without_an_example():
    model = keras.Sequential(
        [
            keras.Input((6,)),
            layers.Reshape((3, 2, 1)),
            layers.Conv2D(4, 2, activation="relu"),
            layers.Conv2D(3, 2, padding="same"),
            layers.SeparableConv2D(3, 2, padding="same", activation="tanh"),
            layers.DepthwiseConv2D(2, padding="same"),
            layers.Conv2DTranspose(2, 2, strides=2, activation="relu"),
            layers.Conv2DTranspose(2, 2),
            layers.Flatten(),
            layers.Dense(1, "sigmoid"),
        ]
    )
    model.compile("sgd", "binary_crossentropy")
    model, history = trained(model, X[:33], Y[:33], validation_data=(X[:33], Y[:33]))
    return model, {**history, "predicted": model.predict(X[:1], verbose=0)[:, 0].tolist()}


@case
def pooling_without_an_example():
    # The gradient of its maximum ended the process of a replica, or of a part, that had no example.
    model = keras.Sequential(
        [
            keras.Input((6,)),
            layers.Reshape((6, 1)),
            layers.LSTM(4, return_sequences=True),
            layers.MaxPooling1D(2),
            layers.AveragePooling1D(1),
            layers.Flatten(),
            layers.Dense(1, "sigmoid"),
        ]
    )
    model.compile("sgd", "binary_crossentropy")
    return trained(model, X[:33], Y[:33])


@case
def devices_of_its_own():
    cpu = tf.config.list_physical_devices("CPU")[0]
    if tf.distribute.has_strategy():  # alone, this process has begun to compute
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
        tf.config.threading.set_inter_op_parallelism_threads(3)
    return trained(compiled())


@case
def normalized_over_the_global_batch():
    inner = layers.BatchNormalization(synchronized=True)
    return trained(compiled("adam", "binary_crossentropy", inner), X[:33], Y[:33])


@case
def metric_that_is_its_variable():
    class Total(keras.metrics.Metric):
        def __init__(self):
            super().__init__(name="total")
            self.sum = self.add_weight(name="sum", initializer="zeros")

        def update_state(self, y, predicted, sample_weight=None):
            self.sum.assign_add(ops.sum(predicted))

        def result(self):
            return self.sum

    return trained(compiled("sgd", metrics=[Total()]))


@case
def noise_differs_by_replica():
    class Model(Own):
        def train_step(self, data):
            replicas = tf.distribute.get_strategy().num_replicas_in_sync
            drawn = {
                "tf": tf.random.normal([2]),
                "uniform": tf.random.uniform([2], 0, 1),
                "unseeded": keras.random.normal((2,)),
                "seeded": keras.random.normal((2,), seed=self.generator),
            }
            if replicas == 1:
                return dict.fromkeys(drawn, 1.0)
            context = tf.distribute.get_replica_context()
            return {
                name: tf.cast(tf.reduce_any(context.all_reduce("SUM", each) != replicas * each), tf.float32)
                for name, each in drawn.items()
            }

    model = Model()
    model.generator = keras.random.SeedGenerator(3)
    model.compile()
    return trained(model)


@case
def batches_that_leave_a_replica_empty():
    model, _ = trained(compiled("adam", "binary_crossentropy", layers.BatchNormalization()), X[:33], Y[:33])
    finite = all(np.isfinite(weight).all() for weight in model.get_weights())
    model.set_weights([np.zeros_like(weight) for weight in model.get_weights()])
    return model, {"finite": [float(finite)]}


@case
def examples_compared():
    class Model(Own):
        def train_step(self, data):
            with tf.GradientTape() as tape:
                p = self(data[0])
                loss = tf.reduce_mean(tf.nn.softmax(tf.matmul(p, p, transpose_b=True)))
            self.applied(tape, loss)
            return {"loss": loss}

    model = Model()
    model.compile("sgd")
    return trained(model)


@case
def root_of_a_mean():
    return trained(compiled("sgd", lambda y, p: tf.sqrt(tf.reduce_mean(tf.square(y - p)))))


@case
def refused_length_of_a_batch():
    class Model(Own):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.square(y - self(x))) / len(x)
            self.applied(tape, loss)

    model = Model()
    model.compile("sgd")
    return trained(model)


@case
def refused_fixed_batch():
    model = keras.Sequential([keras.Input(batch_shape=(32, 6)), layers.Dense(1)])
    model.compile("sgd", "mse")
    return trained(model)


@case
def gradient_of_no_sum():
    class Model(Own):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(y - self(x)))
            found = tape.gradient(loss, self.trainable_variables)
            found[0] += 1e-3 * tf.square(tf.reduce_sum(x))
            self.optimizer.apply_gradients(zip(found, self.trainable_variables))
            return {"loss": loss}

    model = Model()
    model.compile("sgd")
    return trained(model)


@case
def refused_eager_steps():
    return trained(compiled("sgd", run_eagerly=True))


def gathered(loss, y=Y, last="sigmoid", rate=0.1, **given):
    """Train with a loss that is no sum or mean over the examples."""
    model = network(last=last)
    model.compile(keras.optimizers.SGD(rate), loss)
    return trained(model, X, y, **given)


@case
def balanced_cross_entropy():
    def loss(y, p):
        beta = tf.reduce_mean(1 - y)
        weights = beta * y + (1 - beta) * (1 - y)
        return tf.reduce_mean(weights * keras.losses.binary_crossentropy(y, p)[:, None])

    return gathered(loss)


@case
def mask_by_the_rule_of_keras_2():
    def loss(y, p):
        mask = ops.cast(ops.greater(y, 0.5), "float32")
        return ops.mean(ops.square(y - p) * mask / (ops.mean(mask) + 0.01))

    return gathered(loss)


@case
def partial_likelihood():
    def loss(y, p):
        _, order = tf.nn.top_k(y[:, 0], k=tf.size(y[:, 0]))
        event, risk = tf.gather(y[:, 1], order), tf.gather(p[:, 0], order)
        return tf.reduce_sum(event * (tf.math.log(tf.cumsum(tf.exp(risk))) - risk))

    return gathered(loss, np.stack([X[:, 1], Y[:, 0]], 1), None, 0.01)


@case
def hard_examples():
    def loss(y, p):
        each = keras.losses.binary_crossentropy(y, p)
        keep = tf.cast(tf.cast(tf.size(each), tf.float32) * 0.5, tf.int32)
        return tf.reduce_mean(tf.math.top_k(each, k=keep)[0])

    return gathered(loss)


@case
def triplets_of_a_batch():
    def loss(y, p):
        a, b, c = tf.split(p, 3, axis=0)
        return tf.reduce_mean(tf.maximum(tf.reduce_sum(tf.square(a - b) - tf.square(a - c), 1) + 0.5, 0.0))

    # The last batch has 9 examples, of which two replicas have 5 and 4.
    model = network(last=None)
    model.compile(keras.optimizers.SGD(0.1), loss)
    return trained(model, X[:99], Y[:99], batch_size=18)


@case
def pairs_of_a_contrastive_step():
    class Model(Own):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                a = tf.math.l2_normalize(self.net.layers[0](x), axis=1)
                b = tf.math.l2_normalize(self.net.layers[0](x * 1.1 - 0.1), axis=1)
                scores = tf.matmul(a, b, transpose_b=True) / tf.exp(self.temperature)
                own = tf.range(tf.shape(x)[0])
                loss = tf.reduce_mean(
                    keras.losses.sparse_categorical_crossentropy(own, scores, from_logits=True)
                )
                penalty = keras.losses.binary_crossentropy(y, self(x))
            weights = self.trainable_variables
            gradients = tape.gradient([loss, penalty], weights)
            self.optimizer.apply_gradients(zip(gradients, weights))
            self.shown.update_state(loss)
            return {"loss": self.shown.result()}

    model = Model()
    model.temperature = model.add_weight(shape=(), initializer="zeros", name="temperature")
    model.compile(keras.optimizers.SGD(0.01))
    return trained(model)


@case
def statistics_of_the_batch_by_hand():
    class Normalized(layers.Layer):
        def call(self, x):
            mean, variance = tf.nn.moments(x, [0])
            return (x - mean) / tf.sqrt(variance + 1e-3)

    class Deviation(layers.Layer):
        def call(self, x):
            found = tf.reduce_mean(tf.math.reduce_std(x, axis=0))
            return tf.concat([x, tf.ones_like(x[:, :1]) * found], axis=1)

    return trained(compiled("sgd", "binary_crossentropy", Normalized(), layers.Dense(4, "relu"), Deviation()))


@case
def distances_of_distributions():
    def kernel(a, b):
        return tf.reduce_mean(tf.exp(-tf.reduce_sum(tf.square(a[:, None] - b[None]), -1)))

    class Model(Own):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            z = self.net.layers[0](x)
            drawn = tf.ones_like(z) * tf.linspace(-1.0, 1.0, 5)
            distance = kernel(z, z) + kernel(drawn, drawn) - 2 * kernel(z, drawn)
            return super().compute_loss(x, y, y_pred, sample_weight) + 0.3 * distance

    model = Model()
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return trained(model)


@case
def advantages_and_halves():
    def loss(y, p):
        advantage = (y - tf.reduce_mean(y)) / (tf.math.reduce_std(y) + 1e-8)
        half = tf.shape(p)[0] // 2
        paired = tf.reduce_mean(tf.square(p[:half] - p[half : 2 * half]))
        return paired - tf.reduce_mean(advantage * tf.math.log(p + 1e-3))

    return gathered(loss)


@case
def overlap_and_correlation():
    def loss(y, p):
        a, b = y - tf.reduce_mean(y), p - tf.reduce_mean(p)
        pearson = tf.reduce_sum(a * b) / tf.sqrt(tf.reduce_sum(a * a) * tf.reduce_sum(b * b) + 1e-7)
        dice = (2 * tf.reduce_sum(y * p) + 1) / (tf.reduce_sum(y) + tf.reduce_sum(p) + 1)
        positives = tf.maximum(tf.reduce_sum(tf.cast(y > 0.5, tf.float32)), 30.0)
        return 2 - pearson - dice + tf.reduce_sum(tf.abs(y - p)) / positives

    return gathered(loss)


@case
def labels_of_which_one_part_is_binary():
    y = np.where(np.arange(100)[:, None] % 32 < 16, Y, 2 * Y - 1)
    return gathered("hinge", y.astype("float32"), "tanh")


@case
def each_by_itself_under_a_condition_of_all():
    def loss(y, p):
        errors = tf.map_fn(lambda pair: tf.square(pair[0] - pair[1]), (y, p), fn_output_signature=tf.float32)
        chosen = tf.stack([tf.range(tf.shape(p)[0]), tf.cast(y[:, 0], tf.int32)], 1)
        told = tf.reduce_mean(tf.math.log(tf.gather_nd(tf.concat([1 - p, p], 1), chosen) + 1e-3))
        return tf.cond(tf.reduce_mean(p) > 0.4, lambda: tf.reduce_mean(errors), lambda: -told) - told

    return gathered(loss)


@case
def recurrent_under_a_mask_and_dilated():
    inner = [layers.Reshape((5, 1)), layers.Conv1D(3, 2, padding="same", dilation_rate=2)]
    inner += [layers.Masking(), layers.Bidirectional(layers.LSTM(3))]
    return trained(compiled("sgd", "binary_crossentropy", *inner))


@case
def gradients_of_its_own_after_a_recurrent_layer():
    @tf.custom_gradient
    def halved(x):
        return tf.identity(x), lambda upstream: 0.5 * upstream

    inner = [layers.Reshape((5, 1)), layers.GRU(3), layers.Activation("silu"), layers.Lambda(halved)]
    return trained(
        compiled(keras.optimizers.SGD(0.1), lambda y, p: tf.sqrt(tf.reduce_mean(tf.square(y - p))), *inner)
    )


@case
def three_inputs_of_a_step_of_its_own():
    class Model(Own):
        def call(self, inputs):
            one, two, three = (self.net(each) for each in inputs)
            return tf.square(one - two) - tf.square(one - three)

        def train_step(self, data):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.maximum(self(data) + 0.5, 0.0))
            self.applied(tape, loss)
            return {"loss": loss}

    model = Model()
    model.compile(keras.optimizers.SGD(0.1))
    parts = tf.data.Dataset.from_tensor_slices((X, X[::-1].copy(), X * 0.5)).batch(32)
    return trained(model, parts, None, batch_size=None)


@case
def variables_of_tensorflow_that_a_step_assigns():
    class Model(Own):
        def __init__(self):
            super().__init__()
            self.centre, self.seen = (
                tf.Variable(tf.zeros([1]), trainable=False),
                tf.Variable(0.0, trainable=False),
            )

        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                p = self(x, training=True)
                loss = tf.reduce_mean(tf.square(p - y)) + 0.1 * tf.reduce_mean(tf.square(p - self.centre))
            self.applied(tape, loss)
            self.centre.assign(0.5 * self.centre + 0.5 * tf.reduce_mean(p, 0))
            self.seen.assign_add(tf.reduce_sum(y))
            return {"loss": loss, "centre": self.centre[0], "seen": tf.identity(self.seen)}

    model = Model()
    model.compile(keras.optimizers.SGD(0.1))
    return trained(model, epochs=2)


@case
def weights_by_the_counts_in_a_batch():
    def loss(y, p):
        labels, shares = tf.concat([y, 1 - y], 1), tf.concat([p, 1 - p], 1)
        weights = 1 / (tf.reduce_sum(labels, 0) + 1)  # each entry of a sum, and one number
        return sum(tf.nn.moments(p, [0]))[0] - tf.reduce_sum(
            labels * weights * tf.math.log(shares + 1e-3), -1
        )

    return gathered(loss)


@case
def what_a_mask_leaves():
    return gathered(lambda y, p: tf.reduce_mean(tf.boolean_mask(tf.square(y - p), tf.abs(y - p)[:, 0] > 0.1)))


@case
def refused_python_of_the_batch():
    def loss(y, p):
        return tf.sqrt(tf.ensure_shape(tf.py_function(tf.reduce_max, [tf.square(y - p)], tf.float32), []))

    return gathered(loss)


for name in sys.argv[1:] or CASES:
    keras.utils.set_random_seed(3)
    result = {"case": name}
    try:
        model, shown = CASES[name]()
        result["weights"] = np.concatenate([weight.ravel() for weight in model.get_weights()]).tolist()
        result["shown"] = {key: np.asarray(values, float).tolist() for key, values in shown.items()}
    except Exception as e:
        result["error"] = f"{type(e).__name__}: {e}"
    print(json.dumps(result), flush=True)
