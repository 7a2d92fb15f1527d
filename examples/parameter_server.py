"""Train with parameter servers: the ps tasks hold the variables, and each worker computes steps at its own pace.

The chief runs this script. Workers and ps do not need it: orch runs their servers. Started by hand with TF_CONFIG, the
script runs them itself. An evaluator, if the spec has one, runs the script too. When a worker dies, another one repeats
its step. When the chief or a ps dies, all tasks restart from the last checkpoint.

Keras's `fit` needs tf_keras here, because Keras 3 does not support parameter servers. A custom loop works with both,
but must count its steps: under Keras 3 the workers overwrite each other's additions to `optimizer.iterations`.
"""

import argparse
import os

os.environ.setdefault(
    "GRPC_FAIL_FAST", "use_caller"
)  # otherwise the chief does not notice that a ps has died

import keras
import tensorflow as tf
from sklearn.datasets import load_digits

try:
    from orchestrator import runtime
except ImportError:  # started without orch
    runtime = None


def dataset(batch: int) -> tf.data.Dataset:
    """Return an endless data set. Each worker has its own, in its own order."""
    digits = load_digits()
    images = (digits.images[..., None] / 16.0).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((images, digits.target.astype("int32")))
    return data.shuffle(2000).repeat().batch(batch).prefetch(2)


def build() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(16, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


def evaluate(directory: str, last: int) -> None:
    """Print the accuracy of each new checkpoint of the chief, up to the one of the last step."""
    digits = load_digits()
    images = (digits.images[..., None] / 16.0).astype("float32")
    model = build()
    checkpoint = tf.train.Checkpoint(model=model)
    for path in tf.train.checkpoints_iterator(directory):
        try:
            checkpoint.restore(path).expect_partial()  # the optimizer's state is not needed
        except tf.errors.NotFoundError:
            continue  # the chief has already removed it
        step = int(path.rpartition("-")[2])
        accuracy = float((model(images).numpy().argmax(1) == digits.target).mean())
        if runtime:
            runtime.report(step, accuracy=accuracy)
        print(f"evaluated at step {step}, accuracy {accuracy:.4f}", flush=True)
        if step >= last:
            return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch", type=int, default=32, help="of one worker's step")
    parser.add_argument("--save-every", type=int, default=50, metavar="STEPS")
    args = parser.parse_args()

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("worker", "ps"):  # without orch; under orch these tasks do not run the script
        server = tf.distribute.Server(
            resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc"
        )
        server.join()

    directory = os.environ.get("ORCH_CHECKPOINT_DIR", "checkpoints")
    if resolver.task_type == "evaluator":
        evaluate(directory, args.steps)
        return

    # Large variables are split over the ps tasks; small ones stay whole.
    partitioner = tf.distribute.experimental.partitioners.MinSizePartitioner(
        min_shard_bytes=64 << 10, max_shards=resolver.cluster_spec().num_tasks("ps")
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=partitioner)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        model = build()
        optimizer = keras.optimizers.SGD(0.05)
        optimizer.build(model.trainable_variables)
        loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
    manager = tf.train.CheckpointManager(checkpoint, directory, max_to_keep=3)
    checkpoint.restore(manager.latest_checkpoint)

    @tf.function
    def train_step(batches):
        def replica_step(images, labels):
            with tf.GradientTape() as tape:
                loss = loss_of(labels, model(images, training=True))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        return strategy.reduce("MEAN", strategy.run(replica_step, args=next(batches)), axis=None)

    batches = iter(coordinator.create_per_worker_dataset(lambda: dataset(args.batch)))
    step = int(optimizer.iterations.numpy())
    print(f"starting at step {step}", flush=True)
    while step < args.steps:
        # The next free worker takes the step; the chief waits only before it saves.
        count = min(args.save_every, args.steps - step)
        losses = [coordinator.schedule(train_step, args=(batches,)) for _ in range(count)]
        coordinator.join()
        step += count
        optimizer.iterations.assign(step)
        loss = losses[-1].fetch()
        if runtime:
            runtime.report(step, loss=loss)
        manager.save(checkpoint_number=step)
        print(f"step {step}, loss {float(loss):.4f}", flush=True)
    print(f"done at step {step}")


if __name__ == "__main__":
    main()
