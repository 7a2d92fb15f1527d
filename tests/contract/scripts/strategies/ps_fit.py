"""tf_keras `fit` with DatasetCreator and cut variables; its worker and ps start their servers themselves."""

import json
import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if resolver.task_type in ("worker", "ps"):
    server = tf.distribute.Server(
        resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc"
    )
    server.join()

partitioner = tf.distribute.experimental.partitioners.FixedShardsPartitioner(num_shards=2)
strategy = tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=partitioner)


def dataset(context: tf.distribute.InputContext) -> tf.data.Dataset:
    x = tf.random.stateless_uniform((256, 6), (1, context.input_pipeline_id))
    y = tf.cast(tf.reduce_sum(x, 1) > 3, tf.float32)
    return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(256).repeat().batch(16)


with strategy.scope():
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Input((6,)),
            tf.keras.layers.Dense(8),
            tf.keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"], steps_per_execution=5)
    cut = model.layers[0].kernel

directory = os.environ["ORCH_CHECKPOINT_DIR"]
history = model.fit(
    tf.keras.utils.experimental.DatasetCreator(dataset),
    epochs=3,
    steps_per_epoch=20,
    verbose=0,
    callbacks=[
        tf.keras.callbacks.BackupAndRestore(os.path.join(directory, "backup"), delete_checkpoint=False)
    ],
)
print(
    json.dumps(
        {
            "chunks": sorted(chunk.device.rpartition("/device:")[0] for chunk in cut.variables),
            "steps": int(model.optimizer.iterations.numpy()),
            "loss": history.history["loss"],
        }
    )
)
