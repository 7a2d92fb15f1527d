"""Model parallel and data parallel in one: each replica of a MirroredStrategy is spread over two devices.

With four devices, replica 0 has 0 and 2, replica 1 has 1 and 3. MirroredStrategy mirrors every variable that is made in
its scope on devices 0 and 1, whatever `tf.device` says. So the upper half is made outside of the scope, once for each
replica on its second device, and the script adds up its gradients; those of the lower half the strategy adds up.

In a cluster spec: `strategy: mirrored`, and one task with four GPUs. Without GPUs the CPU is shown as four devices.

    python examples/model_and_data_parallel.py --steps 100
"""

import argparse
import os

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

try:
    from orchestrator import runtime
except ImportError:  # started without orch
    runtime = None

REPLICAS = 2
RATE = 0.1


def four_devices() -> list[str]:
    """Return the names of four GPUs, else of four logical CPUs."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 4)
    gpus = tf.config.list_logical_devices("GPU")
    found = gpus if len(gpus) >= 4 else tf.config.list_logical_devices("CPU")
    return [device.name for device in found[:4]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=128, help="of both replicas together")
    parser.add_argument("--save-every", type=int, default=20, metavar="STEPS")
    args = parser.parse_args()

    devices = four_devices()
    strategy, second = tf.distribute.MirroredStrategy(devices[:REPLICAS]), devices[REPLICAS:]
    keras.utils.set_random_seed(1)
    with strategy.scope():
        lower = keras.Sequential([keras.layers.Dense(256, "relu"), keras.layers.Dense(128, "relu")])
        lower.build((None, 64))
        optimizer = keras.optimizers.SGD(RATE)
        optimizer.build(lower.trainable_variables)

    # Plain variables: a Keras layer would ask for the strategy when it is called within a replica.
    random = np.random.default_rng(1)
    shapes = {"hidden": (128, 64), "out": (64, 10)}
    initial = {name: random.normal(0, 0.1, shape).astype("float32") for name, shape in shapes.items()}
    uppers = []
    for device in second:
        with tf.device(device):
            uppers.append({name: tf.Variable(value, name=name) for name, value in initial.items()})
    for i, upper in enumerate(uppers):
        print(f"replica {i}: lower half on {devices[i]}, upper half on {upper['out'].device}", flush=True)

    def replica_step(images, labels):
        context = tf.distribute.get_replica_context()
        replica = int(tf.get_static_value(context.replica_id_in_sync_group))
        upper = uppers[replica]
        with tf.GradientTape() as tape:
            middle = lower(images, training=True)  # on the replica's first device
            with tf.device(second[replica]):
                logits = tf.nn.relu(middle @ upper["hidden"]) @ upper["out"]
                each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
                loss = tf.reduce_sum(each) / args.batch  # the replicas' gradients are added up
        names = list(upper)
        below, above = tape.gradient(loss, (lower.trainable_variables, [upper[name] for name in names]))
        optimizer.apply_gradients(zip(below, lower.trainable_variables, strict=True))
        summed = context.all_reduce("sum", above)
        with tf.device(second[replica]):
            for name, gradient in zip(names, summed, strict=True):
                upper[name].assign_sub(RATE * gradient)
        return loss

    @tf.function
    def train_step(images, labels):
        losses = strategy.run(replica_step, args=(images, labels))
        return strategy.reduce("SUM", losses, axis=None)

    directory = os.environ.get("ORCH_CHECKPOINT_DIR", "checkpoints")
    checkpoint = tf.train.Checkpoint(lower=lower, optimizer=optimizer, uppers=uppers)
    manager = tf.train.CheckpointManager(checkpoint, directory, max_to_keep=3)
    checkpoint.restore(manager.latest_checkpoint)

    digits = load_digits()
    data = tf.data.Dataset.from_tensor_slices(
        ((digits.data / 16.0).astype("float32"), digits.target.astype("int32"))
    )
    data = data.shuffle(2000, seed=1).repeat().batch(args.batch, drop_remainder=True)
    batches = iter(strategy.experimental_distribute_dataset(data))
    start, loss = int(optimizer.iterations.numpy()), None
    print(f"starting at step {start}", flush=True)
    for step in range(start + 1, args.steps + 1):
        loss = train_step(*next(batches))
        if runtime:
            runtime.report(step, loss=loss)
        if step % args.save_every == 0:
            manager.save(checkpoint_number=step)
    apart = max(float(tf.reduce_max(tf.abs(uppers[0][n] - uppers[1][n]))) for n in shapes)
    told = "-" if loss is None else f"{float(loss):.4f}"
    print(
        f"done at step {max(start, args.steps)}, loss {told}; the replicas' upper halves differ by {apart:g}"
    )


if __name__ == "__main__":
    main()
