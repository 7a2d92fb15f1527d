"""Reads other examples on each worker, as a list of files without an order would have it; and then in another order."""

import json
import os
import subprocess
import tempfile
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

index = json.loads(os.environ.get("TF_CONFIG", '{"task": {"index": 0}}'))["task"]["index"]
every = np.arange(240, dtype="float32").reshape(60, 4)
x = np.roll(every, index, axis=0)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(1e-6), "mse")
try:
    model.fit(x, x.sum(1), batch_size=20, epochs=1, verbose=0)
except RuntimeError:
    print("refused", flush=True)


def numbered(number):
    row = tf.cast(tf.range(4, dtype=tf.int64) + 4 * number, tf.float32)
    return row, tf.reduce_sum(row)


def noisy(row, total):
    return row + tf.random.normal([4]), total


def unordered(data):
    options = tf.data.Options()
    options.deterministic = False
    return data.with_options(options)


rows = tf.data.Dataset.range(60).shuffle(60).map(numbered, num_parallel_calls=4)
lines = tf.data.Dataset.range(60).interleave(
    lambda number: tf.data.Dataset.from_tensors(number).map(numbered), cycle_length=8, num_parallel_calls=8
)
with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
    # A directory in memory lists the newest file first: here each worker has another order.
    for number in sorted(range(60), reverse=index == 1):
        Path(folder, f"{number:02}.txt").write_text(str(number))
    listed = subprocess.run(
        ["ls", "-U", folder], stdout=subprocess.PIPE, text=True, check=True
    ).stdout.split()
    print(json.dumps({"fit": "listed", "order": listed}), flush=True)
    read = [int(each.read_text()) for each in Path(folder).iterdir()]
words = rows.map(lambda row, total: ({"a": row, "b": tf.strings.as_string(total)}, total))
for name, data in {
    "rows": rows.batch(20).prefetch(2),
    "lines": unordered(lines.batch(20)),
    "files": tf.data.Dataset.from_tensor_slices(np.array(read)).map(numbered).batch(20),
    "noisy": rows.map(noisy, num_parallel_calls=4).batch(20),
    "words": words.batch(20).map(lambda both, total: (both["a"], total)),
}.items():
    model.fit(data, epochs=2, verbose=0, validation_data=(every, every.sum(1)))
    rate, steps = float(model.optimizer.learning_rate), int(model.optimizer.iterations)
    print(json.dumps({"fit": name, "rate": rate, "steps": steps}), flush=True)
turned = tf.data.Dataset.range(60).map(lambda number: numbered((number + index) % 60)).batch(20)
model.fit(turned, epochs=2, verbose=0)
print("not reached")
