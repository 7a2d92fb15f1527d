"""Measure the effect of cache, shuffle, batch and prefetch, and show which files a worker reads.

The same training step gets its data from four pipelines, each with one more stage than the one before. The images are
PNG files in TFRecords, as in many data sets. The storage is as slow as a network's: it waits (--storage-ms) before it
returns the next 32 records.

The order matters: what is expensive and always the same comes before `cache`, what must differ each time (shuffle,
augmentation) after it; `batch` after `shuffle`, or whole batches are shuffled; `prefetch` last.

    python examples/data_pipeline.py
"""

import argparse
import os
import tempfile
import time

import numpy as np
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()

from sklearn.datasets import load_digits  # noqa: E402

try:
    from orchestrator import runtime
except ImportError:  # started without orch
    runtime = None

AUTOTUNE = tf.data.AUTOTUNE
AutoShardPolicy = tf.data.experimental.AutoShardPolicy
SIDE = 32


def write_files(folder, count, images):
    """Write the digits as PNG images into `count` TFRecord files, like a real data set."""
    digits = load_digits()
    paths = [os.path.join(folder, f"digits-{i:02d}.tfrecord") for i in range(count)]
    for i, path in enumerate(paths):
        with tf.io.TFRecordWriter(path) as writer:
            for image, label in zip(
                digits.images[i:images:count], digits.target[i:images:count], strict=True
            ):
                png = tf.io.encode_png((image[..., None] * 15).astype(np.uint8)).numpy()
                features = {
                    "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[png])),
                    "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
                }
                example = tf.train.Example(features=tf.train.Features(feature=features))
                writer.write(example.SerializeToString())
    return paths


def parse(record):
    fields = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}
    example = tf.io.parse_single_example(record, fields)
    image = tf.image.resize(tf.io.decode_png(example["image"], channels=1), (SIDE, SIDE), method="bicubic")
    return image / 255.0, example["label"]


def opened(path, storage_ms):
    """Return a file's records. Every 32 of them come after a pause, in which the processor is free."""

    def late(records):
        time.sleep(storage_ms / 1e3)
        return records

    def arrive(records):
        records = tf.numpy_function(late, [records], tf.string)
        records.set_shape([None])
        return records

    return tf.data.TFRecordDataset(path).batch(32).map(arrive).unbatch()


def pipelines(paths, batch, storage_ms):
    """Yield name and data set, each with one more stage than the one before."""
    files = tf.data.Dataset.from_tensor_slices(paths)

    def read(path):
        return opened(path, storage_ms)

    yield "one after the other", files.flat_map(read).map(parse).shuffle(1000).batch(batch)
    several = files.interleave(read, cycle_length=8, num_parallel_calls=8, deterministic=False)
    parsed = several.map(parse, num_parallel_calls=AUTOTUNE)
    yield "+ several files at once", parsed.shuffle(1000).batch(batch)
    yield "+ prefetch", parsed.shuffle(1000).batch(batch).prefetch(AUTOTUNE)
    yield "+ cache, before shuffle", parsed.cache().shuffle(1000).batch(batch).prefetch(AUTOTUNE)


def with_policy(data, policy):
    """Return the data set under this policy. FILE gives each worker its own files, of which it needs at least one.

    With DATA every worker reads everything and drops the share of the others. With OFF every worker gets everything.
    """
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = policy
    return data.with_options(options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=64, help="of all workers together")
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--images", type=int, default=1024)
    parser.add_argument("--epochs", type=int, default=2, help="to measure each with, and one more before")
    parser.add_argument("--storage-ms", type=float, default=20.0, help="before each 32 records")
    args = parser.parse_args()

    with strategy.scope():
        weights = tf.Variable(tf.zeros([SIDE * SIDE, 10]))

    @tf.function
    def train_step(images, labels):
        def replica_step(images, labels):
            with tf.GradientTape() as tape:
                logits = tf.matmul(tf.reshape(images, [-1, SIDE * SIDE]), weights)
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
                loss = tf.nn.compute_average_loss(losses, global_batch_size=args.batch)
            gradient = tape.gradient(loss, weights)
            context = tf.distribute.get_replica_context()
            weights.assign_sub(0.01 * context.all_reduce("sum", gradient) / strategy.num_replicas_in_sync)
            return loss

        return strategy.reduce("SUM", strategy.run(replica_step, args=(images, labels)), axis=None)

    steps = 0

    def measure(data):
        """Return the seconds of the fastest epoch, without the first one: it traces the step and fills the cache."""
        nonlocal steps
        batches = strategy.experimental_distribute_dataset(data)
        measured = []
        for _ in range(1 + args.epochs):
            began = time.monotonic()
            for images, labels in batches:
                train_step(images, labels)
                steps += 1
                if runtime:
                    runtime.report(steps)
            measured.append(time.monotonic() - began)
        return min(measured[1:])

    workers = strategy.num_replicas_in_sync // max(1, len(strategy.extended.worker_devices))
    policy = AutoShardPolicy.FILE if args.files >= workers else AutoShardPolicy.DATA
    with tempfile.TemporaryDirectory() as folder:
        paths, first = write_files(folder, args.files, args.images), None
        for name, data in pipelines(paths, args.batch, args.storage_ms):
            best = measure(with_policy(data, policy))
            first = first or best
            print(f"{best:6.3f} s an epoch, {first / best:5.1f} times as fast: {name}", flush=True)
        if workers > 1:
            *_, (_, uncached), _ = pipelines(paths, args.batch, args.storage_ms)
            seconds = [measure(with_policy(uncached, each)) for each in (policy, AutoShardPolicy.DATA)]
            print(f"without cache: {policy.name} {seconds[0]:.3f} s, DATA {seconds[1]:.3f} s an epoch")
        print(f"auto_shard_policy {policy.name}: {args.files} files, {workers} worker(s)")


if __name__ == "__main__":
    main()
