"""A loop of one's own under MultiWorkerMirroredStrategy, built without arguments; an evaluator works alone."""

import json
import time

import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
options = strategy.extended._communication_options


@tf.function
def step() -> tf.Tensor:
    def replica() -> tf.Tensor:
        context = tf.distribute.get_replica_context()
        return context.all_reduce("sum", tf.cast(context.replica_id_in_sync_group, tf.float32))

    return strategy.reduce("MEAN", strategy.run(replica), axis=None)


print(
    json.dumps(
        {
            "replicas": strategy.num_replicas_in_sync,
            "sum": float(step()),
            "communication": options.implementation.value,
            "timeout_s": options.timeout_seconds,
            "pack": options.bytes_per_pack,
        }
    ),
    flush=True,
)
time.sleep(1)  # who ends first fails the last reduction of the others, where they have not read it yet
