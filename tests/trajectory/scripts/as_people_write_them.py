"""Trains scripts as people write them, one after the other: python as_people_write_them.py OUT NAME...

Each has a model that counts by example what it was trained with. What each ends with is written to OUT/RANK/NAME.json:
the count, digests of weights and optimizer, the learning rate, what callbacks remember, and rows of tables.
With DIES, one of the workers kills itself at a moment of one of the scripts: {"script", "moment", "rank", "step", "s",
"signal"}.
"""

import json
import os
import sys
import threading
import time
import zlib

import keras
import numpy as np
import tensorflow as tf

EXAMPLES, BATCH, EPOCHS = 64, 16, 3
layers, ops = keras.layers, keras.ops
out, names = sys.argv[1], sys.argv[2:]
rank = json.loads(os.environ.get("TF_CONFIG") or "{}").get("task", {}).get("index", 0)
dies = json.loads(os.environ.get("DIES", "{}"))

drawn = np.random.default_rng(5)
x = np.concatenate([np.arange(EXAMPLES)[:, None], drawn.normal(size=(EXAMPLES, 8))], 1).astype("float32")
y = (x[:, 1:].sum(axis=1) > 0).astype("int32")
words = np.concatenate([np.arange(EXAMPLES)[:, None], drawn.integers(0, 30, (EXAMPLES, 6))], 1).astype(
    "int32"
)


class Visits(layers.Layer):
    """Counts by example, whose number is in the first column, and passes the others on."""

    def build(self, shape):
        """Make the counts."""
        self.visits = self.add_weight(
            shape=(EXAMPLES,), initializer="zeros", trainable=False, aggregation="sum", autocast=False
        )

    def call(self, inputs, training=False):
        """Count, in training."""
        if training:
            here = tf.cast(tf.reshape(inputs[:, 0], (-1, 1)), tf.int32)
            self.visits._value.assign_add(tf.reduce_sum(tf.one_hot(here[:, 0], EXAMPLES), axis=0))
        return inputs[:, 1:]

    def compute_output_shape(self, shape):
        """Return the shape without the first column."""
        return (shape[0], shape[1] - 1)


class Watch(keras.callbacks.Callback):
    """Counts what it is told, and ends the victim at its moment."""

    begun = ended = tested = ends = 0

    def __init__(self, name):
        super().__init__()
        self.script = name

    def reach(self, moment, step=None):
        """Die if it is the moment."""
        if dies.get("script") != self.script or dies["moment"] != moment or dies["rank"] != rank:
            return
        if step is None or step == dies["step"]:
            if dies["s"]:
                threading.Timer(dies["s"], os.kill, (os.getpid(), dies["signal"])).start()
                return
            os.kill(os.getpid(), dies["signal"])

    def on_train_begin(self, logs=None):
        """Tell that the steps will be traced."""
        self.reach("compile")

    def on_train_batch_begin(self, batch, logs=None):
        """Tell that a step begins."""
        time.sleep(0.01)
        self.reach("step", self.begun)
        self.begun += 1

    def on_train_batch_end(self, batch, logs=None):
        """Count."""
        self.ended += 1

    def on_test_batch_begin(self, batch, logs=None):
        """Tell that a step of an evaluation begins."""
        if self.ends == 1:
            self.reach("validation")

    def on_test_end(self, logs=None):
        """Count."""
        self.tested += 1

    def on_epoch_end(self, epoch, logs=None):
        """Tell that an epoch ends."""
        if self.ends == 1:
            self.reach("epoch end")
        self.ends += 1


class Rises(keras.callbacks.Callback):
    """Raises the learning rate before each step."""

    def on_train_batch_begin(self, batch, logs=None):
        """Raise it."""
        rate = self.model.optimizer.learning_rate
        rate.assign(rate * 1.01)


def dense(*inner, width=8):
    """Return a classifier with these layers in its middle."""
    return keras.Sequential(
        [keras.Input((width + 1,)), Visits(), layers.Dense(12, "relu"), *inner, layers.Dense(2, "softmax")]
    )


def compiled(model, optimizer="adam", **given):
    """Return the model, compiled as a classifier."""
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"], **given)
    return model


def slices():
    """Return the examples as a data set."""
    return tf.data.Dataset.from_tensor_slices((x, y))


def fitted(name, model, data=None, callbacks=(), **given):
    """Fit and return all that can be compared."""
    watch = Watch(name)
    arrays = {"y": y, "batch_size": BATCH} if data is None else {}
    given = {"epochs": EPOCHS, "verbose": 0, **arrays, **given}
    history = model.fit(x if data is None else data, callbacks=[*callbacks, watch], **given)
    counted = [watch.begun, watch.ended, watch.tested, watch.ends]
    return {"counted": counted, "history": history.history, **ended(model)}


def ended(model, *optimizers):
    """Return what a model ends with."""

    def digest(variables):
        each = [np.ascontiguousarray(np.asarray(variable)) for variable in variables]
        return [zlib.crc32(np.ravel(array).view(np.uint8).data) for array in each]

    optimizers = optimizers or (model.optimizer,)
    visits = [
        np.asarray(layer.visits).astype(int).tolist()
        for layer in model._flatten_layers()
        if isinstance(layer, Visits)
    ]
    return {
        "weights": digest(model.variables),
        "sum": float(sum(np.abs(np.asarray(each)).sum() for each in model.trainable_variables)),
        "visits": visits,
        "optimizer": [digest(each.variables) for each in optimizers],
        "rate": [float(each.learning_rate) for each in optimizers],
    }


def arrays(name):
    """Train arrays with Adam, dropout, and an evaluation each epoch."""
    return fitted(name, compiled(dense(layers.Dropout(0.3))), validation_data=(x[:32], y[:32]))


def normalized(name):
    """Train with BatchNormalization, of which a part of the examples is kept for the evaluation."""
    return fitted(name, compiled(dense(layers.BatchNormalization())), validation_split=0.25)


def own_step(name):
    """Train with a `train_step` of the script's own."""

    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.inner = dense(layers.Dropout(0.2))
            self.mean = keras.metrics.Mean(name="mean")

        def call(self, inputs, training=False):
            return self.inner(inputs, training=training)

        def train_step(self, data):
            inputs, labels = data
            with tf.GradientTape() as tape:
                loss = self.compute_loss(inputs, labels, self(inputs, training=True))
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            self.mean.update_state(loss)
            return {"mean": self.mean.result()}

    return fitted(name, compiled(Own()))


def mixed(name):
    """Train in float16 with a loss that is scaled."""
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        return fitted(name, compiled(dense()))
    finally:
        keras.mixed_precision.set_global_policy("float32")


def inputs(name):
    """Train a model of two inputs and two outputs."""
    one, other = keras.Input((9,), name="one"), keras.Input((8,), name="other")
    both = layers.Concatenate()([Visits()(one), layers.Dense(4)(other)])
    sign = layers.Dense(2, "softmax", name="sign")(both)
    model = keras.Model(
        {"one": one, "other": other}, {"sign": sign, "size": layers.Dense(1, name="size")(both)}
    )
    model.compile("adam", {"sign": "sparse_categorical_crossentropy", "size": "mse"})
    data = tf.data.Dataset.from_tensor_slices(
        ({"one": x, "other": x[:, 1:]}, {"sign": y, "size": x[:, 1:].sum(axis=1, keepdims=True)})
    )
    return fitted(name, model, data.shuffle(EXAMPLES).batch(BATCH))


def schedule(name):
    """Train with a schedule in the optimizer, and clipped gradients."""
    rate = keras.optimizers.schedules.CosineDecay(0.05, 12, warmup_steps=3, warmup_target=0.1)
    return fitted(name, compiled(dense(), keras.optimizers.SGD(rate, momentum=0.9, clipnorm=1.0)))


def plateau(name):
    """Train with what callbacks of Keras remember, and a rate that rises with each step."""
    each = [
        keras.callbacks.EarlyStopping("val_loss", patience=2, restore_best_weights=True, min_delta=0.5),
        keras.callbacks.ReduceLROnPlateau("val_loss", patience=1, min_delta=0.5),
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
        Rises(),
    ]
    return fitted(name, compiled(dense()), callbacks=each, validation_data=(x[:32], y[:32]), epochs=5)


def weighted(name):
    """Train with weights of classes."""
    return fitted(name, compiled(dense()), class_weight={0: 1.0, 1: 3.0})


class Batches(keras.utils.PyDataset):
    """Shuffles after each epoch."""

    def __init__(self):
        super().__init__()
        self.order = np.arange(EXAMPLES)

    def __len__(self):
        return EXAMPLES // BATCH

    def __getitem__(self, place):
        rows = self.order[place * BATCH : (place + 1) * BATCH]
        return x[rows], y[rows]

    def on_epoch_end(self):
        """Shuffle."""
        np.random.shuffle(self.order)


def py_dataset(name):
    """Train batches of a PyDataset."""
    return fitted(name, compiled(dense()), Batches())


def generator(name):
    """Train what a generator draws."""

    def batches():
        order = np.random.default_rng(11)
        while True:
            rows = order.integers(0, EXAMPLES, BATCH)
            yield x[rows], y[rows]

    return fitted(name, compiled(dense()), batches(), steps_per_epoch=4)


def from_generator(name):
    """Train a data set whose generator draws another order each time."""
    order = np.random.default_rng(7)

    def rows():
        for row in order.permutation(EXAMPLES):
            yield x[row], y[row]

    signature = (tf.TensorSpec((9,), tf.float32), tf.TensorSpec((), tf.int32))
    data = tf.data.Dataset.from_generator(rows, output_signature=signature)
    return fitted(name, compiled(dense()), data.batch(BATCH).prefetch(2))


def pipeline(name):
    """Train a data set that is shuffled, cached, interleaved and joined."""
    parts = tf.data.Dataset.range(2).interleave(
        lambda part: slices().shard(2, part).shuffle(16), cycle_length=2
    )
    data = parts.take(32).cache().concatenate(slices().skip(32).shuffle(32)).batch(BATCH)
    return fitted(name, compiled(dense()), data)


def repeated(name):
    """Train an endless data set, so many steps an epoch."""
    data = slices().shuffle(EXAMPLES).repeat().batch(BATCH)
    return fitted(name, compiled(dense()), data, steps_per_epoch=3)


def accumulated(name):
    """Train with gradients of two steps."""
    return fitted(name, compiled(dense(), keras.optimizers.Adam(0.01, gradient_accumulation_steps=2)))


def averaged(name):
    """Train with a moving average of the weights."""
    return fitted(name, compiled(dense(), keras.optimizers.Adam(0.01, use_ema=True, ema_momentum=0.9)))


def embedded(name):
    """Train words: an embedding and a GRU."""
    middle = [layers.Embedding(30, 8), layers.GRU(8, dropout=0.1), layers.Dense(2, "softmax")]
    model = keras.Sequential([keras.Input((7,), dtype="int32"), Visits(), *middle])
    data = tf.data.Dataset.from_tensor_slices((words, y)).shuffle(EXAMPLES).batch(BATCH)
    return fitted(name, compiled(model), data)


def stateful(name):
    """Train a recurrent layer that keeps its state from batch to batch."""
    start = keras.Input(batch_shape=(BATCH, 9))
    state = layers.SimpleRNN(6, stateful=True)(layers.Reshape((8, 1))(Visits()(start)))
    model = compiled(keras.Model(start, layers.Dense(2, "softmax")(state)))
    return fitted(name, model, shuffle=False)


def tuned(name):
    """Train in two fits: the second one with a part of the weights, and a smaller rate."""
    base = keras.Sequential([keras.Input((8,)), layers.Dense(12, "relu"), layers.BatchNormalization()])
    model = keras.Sequential([keras.Input((9,)), Visits(), base, layers.Dense(2, "softmax")])
    base.trainable = False
    first = fitted(f"{name}, first", compiled(model), epochs=2)
    base.trainable = True
    return {"first": first, **fitted(name, compiled(model, keras.optimizers.Adam(1e-4)))}


def of_chief(name):
    """Train with a table and checkpoints that the chief alone writes."""
    place, mine = f"{out}/{name}", []
    if rank == 0:
        mine = [
            keras.callbacks.CSVLogger(f"{place}.csv"),
            keras.callbacks.ModelCheckpoint(
                f"{place}.weights.h5", "loss", save_best_only=True, save_weights_only=True
            ),
        ]
    found = fitted(name, compiled(dense()), callbacks=mine, validation_data=(x[:32], y[:32]))
    if rank == 0:
        with open(f"{place}.csv", encoding="utf-8") as file:
            found["table"] = file.read().splitlines()
    return found


def augmented(name):
    """Train images that are drawn anew each time."""
    images = [layers.Reshape((4, 2, 1)), layers.RandomFlip(), layers.GaussianNoise(0.1), layers.Flatten()]
    model = keras.Sequential([keras.Input((9,)), Visits(), *images, layers.Dense(2, "softmax")])
    return fitted(name, compiled(model), slices().shuffle(EXAMPLES).batch(BATCH))


def gan(name):
    """Train two models with an optimizer each."""

    class Gan(keras.Model):
        def __init__(self):
            super().__init__()
            self.seen = Visits()
            self.seen.build((None, 9))
            self.critic = keras.Sequential([keras.Input((8,)), layers.Dense(8, "relu"), layers.Dense(1)])
            self.maker = keras.Sequential([keras.Input((3,)), layers.Dense(8, "relu"), layers.Dense(8)])
            self.noise = keras.random.SeedGenerator(4)

        def compile(self, of_critic, of_maker):
            super().compile()
            self.of_critic, self.of_maker = of_critic, of_maker
            self.bce = keras.losses.BinaryCrossentropy(from_logits=True)

        def train_step(self, data):
            data = self.seen(data, training=True)
            count = tf.shape(data)[0]
            made = self.maker(keras.random.normal((count, 3), seed=self.noise))
            truth = tf.concat([tf.ones((count, 1)), tf.zeros((count, 1))], axis=0)
            with tf.GradientTape() as tape:
                loss = self.bce(truth, self.critic(tf.concat([made, data], axis=0)))
            weights = self.critic.trainable_weights
            self.of_critic.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
            with tf.GradientTape() as tape:
                noise = keras.random.normal((count, 3), seed=self.noise)
                fooled = self.bce(tf.zeros((count, 1)), self.critic(self.maker(noise)))
            weights = self.maker.trainable_weights
            self.of_maker.apply_gradients(zip(tape.gradient(fooled, weights), weights, strict=True))
            return {"critic": loss, "fooled": fooled}

    class Slower(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            rate = self.model.of_maker.learning_rate
            rate.assign(rate * 0.7)

    model = Gan()
    model.compile(keras.optimizers.Adam(0.01), keras.optimizers.Adam(0.02))
    watch = Watch(name)
    history = model.fit(x, batch_size=BATCH, epochs=EPOCHS, callbacks=[watch, Slower()], verbose=0)
    return {"history": history.history, **ended(model, model.of_critic, model.of_maker)}


def several_steps(name):
    """Train three steps in a call, of the four of an epoch."""
    return fitted(name, compiled(dense(), steps_per_execution=3))


def by_batch(name):
    """Train with `train_on_batch`, in a loop of the script's own."""
    model, watch = compiled(dense()), Watch(name)
    order, logs = np.random.default_rng(2), []
    for epoch in range(EPOCHS):
        for batch in order.permutation(EXAMPLES).reshape(-1, BATCH):
            watch.on_train_batch_begin(0)
            logs.append([float(each) for each in model.train_on_batch(x[batch], y[batch])])
        watch.on_epoch_end(epoch)
    return {"logs": logs, **ended(model)}


SCRIPTS = [
    *(arrays, normalized, own_step, mixed, inputs, schedule, plateau, weighted, py_dataset, generator),
    *(from_generator, pipeline, repeated, accumulated, averaged, embedded, stateful, tuned, of_chief),
    *(augmented, gan, several_steps, by_batch),
]

if __name__ == "__main__":
    os.makedirs(f"{out}/{rank}", exist_ok=True)
    for script in SCRIPTS:
        if script.__name__ in names or not names:
            keras.utils.set_random_seed(3)
            print(f"begins {script.__name__}", flush=True)
            try:
                found = script(script.__name__)
            except RuntimeError as e:
                if getattr(e, "orch_kind", "") != "unsupported":
                    raise
                found = {"refused": str(e)}
            with open(f"{out}/{rank}/{script.__name__}.json", "w", encoding="utf-8") as file:
                json.dump(found, file)
