"""Train on a TPU, by name or on this TPU VM: an ordinary TPUStrategy script. orch tells its resolver the spec's TPU.

orch up cluster_specs/tpu.yaml --follow
"""

import argparse
import os

import tensorflow as tf

# Without arguments: orch sets TPU_NAME, or for `tpu: local` acts as if that were given here.
resolver = tf.distribute.cluster_resolver.TPUClusterResolver()
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.TPUStrategy(resolver)

import keras  # noqa: E402
import numpy as np  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=128, help="of each core")
    args = parser.parse_args()

    random = np.random.default_rng(0)
    centres = random.normal(size=(10, 32))
    labels = random.integers(0, 10, 65536).astype("int32")
    points = (centres[labels] + random.normal(scale=0.8, size=(len(labels), 32))).astype("float32")
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((32,)), keras.layers.Dense(256, "relu"), keras.layers.Dense(10)]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss, metrics=["accuracy"], steps_per_execution=32)
    batch = args.batch * strategy.num_replicas_in_sync
    data = tf.data.Dataset.from_tensor_slices((points, labels)).shuffle(len(labels)).repeat()
    backup = os.environ.get("ORCH_CHECKPOINT_DIR", "checkpoints") + "/backup"
    model.fit(
        data.batch(batch, drop_remainder=True),  # a TPU needs fixed shapes
        epochs=args.epochs,
        steps_per_epoch=len(labels) // batch,
        callbacks=[keras.callbacks.BackupAndRestore(backup)],
        verbose=2,
    )


if __name__ == "__main__":
    main()
