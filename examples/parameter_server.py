"""A parameter server: variables live on the ps tasks, and each worker computes steps at its own pace.

The chief runs this script; workers and ps need none, orch serves them. Started by hand with TF_CONFIG, the script
serves them itself. An evaluator, where the spec has one, runs it too, beside the training. A worker that dies loses
the step that it was computing, which another one computes again; when the chief or a ps dies, training starts again
from the last checkpoint.

Keras's `fit` needs tf_keras here (Keras 3 does not support parameter servers). A loop works with both; but count
the steps yourself: under Keras 3 the workers' additions to `optimizer.iterations` overwrite each other.
"""

import argparse
import os

os.environ.setdefault("GRPC_FAIL_FAST", "use_caller")  # or the chief never learns that a ps has died

import keras
import tensorflow as tf
from sklearn.datasets import load_digits

try:
    from orchestrator import runtime
except ImportError:  # started by hand, where orch is not installed
    runtime = None


def dataset(batch: int) -> tf.data.Dataset:
    """Each worker has a data set of its own, in an order of its own, without end."""
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
    """Print the accuracy of each checkpoint that the chief saves, up to that of the last step."""
    digits = load_digits()
    images = (digits.images[..., None] / 16.0).astype("float32")
    model = build()
    checkpoint = tf.train.Checkpoint(model=model)
    for path in tf.train.checkpoints_iterator(directory):
        try:
            checkpoint.restore(path).expect_partial()  # the optimizer's part is left out
        except tf.errors.NotFoundError:
            continue  # the chief keeps a few only, and was faster
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
    if resolver.task_type in ("worker", "ps"):  # by hand; under orch such a task does not come here
        server = tf.distribute.Server(
            resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc"
        )
        server.join()

    directory = os.environ.get("ORCH_CHECKPOINT_DIR", "checkpoints")
    if resolver.task_type == "evaluator":
        evaluate(directory, args.steps)
        return

    # Large variables are cut in as many chunks as there are ps tasks, small ones stay whole.
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
        # Handed out to whichever worker is free; the chief waits only where it wants to save.
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
