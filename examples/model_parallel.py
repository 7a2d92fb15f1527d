"""Split a model that is too large for one device in two by hand: `tf.device` says where each half is.

Only one device works at a time, so this saves memory, not time. Without two GPUs it uses the CPU as two devices, for a
test. In a cluster spec: `strategy: single`, and one task with two GPUs.

    python examples/model_parallel.py --steps 100
"""

import argparse
import os

import keras
import tensorflow as tf
from sklearn.datasets import load_digits

try:
    from orchestrator import runtime
except ImportError:  # started without orch
    runtime = None


def two_devices() -> list[str]:
    """Return the names of two GPUs, else of two logical CPUs, which must exist before TensorFlow's first operation."""
    gpus = tf.config.list_logical_devices("GPU")
    if len(gpus) >= 2:
        return [gpus[0].name, gpus[1].name]
    return [device.name for device in tf.config.list_logical_devices("CPU")[:2]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--save-every", type=int, default=20, metavar="STEPS")
    args = parser.parse_args()

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    first, second = two_devices()

    # A layer's variables are where it is built.
    with tf.device(first):
        lower = keras.Sequential([keras.layers.Dense(512, "relu"), keras.layers.Dense(256, "relu")])
        lower.build((None, 64))
    with tf.device(second):
        upper = keras.Sequential([keras.layers.Dense(128, "relu"), keras.layers.Dense(10)])
        upper.build((None, 256))
    for name, half in (("lower", lower), ("upper", upper)):
        places = {variable.value.device for variable in half.trainable_variables}
        print(f"{name} half: {half.count_params()} parameters on {', '.join(sorted(places))}", flush=True)

    # One optimizer per half: its slots are created on the device of their variables.
    optimizers = []
    for device, half in ((first, lower), (second, upper)):
        with tf.device(device):
            optimizers.append(keras.optimizers.Adam(1e-3))
            optimizers[-1].build(half.trainable_variables)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def train_step(images, labels):
        with tf.GradientTape() as tape:
            with tf.device(first):
                middle = lower(images, training=True)
            with tf.device(
                second
            ):  # only the activations between the halves are sent, and their gradients back
                loss = loss_of(labels, upper(middle, training=True))
        variables = [lower.trainable_variables, upper.trainable_variables]
        for optimizer, gradients, half in zip(
            optimizers, tape.gradient(loss, variables), variables, strict=True
        ):
            optimizer.apply_gradients(zip(gradients, half, strict=True))
        return loss

    directory = os.environ.get("ORCH_CHECKPOINT_DIR", "checkpoints")
    checkpoint = tf.train.Checkpoint(
        lower=lower, upper=upper, optimizer=optimizers[0], second_optimizer=optimizers[1]
    )
    manager = tf.train.CheckpointManager(checkpoint, directory, max_to_keep=3)
    checkpoint.restore(manager.latest_checkpoint)

    digits = load_digits()
    data = tf.data.Dataset.from_tensor_slices(((digits.data / 16.0).astype("float32"), digits.target))
    batches = iter(data.shuffle(2000, seed=1).repeat().batch(128))
    start, loss = int(optimizers[0].iterations.numpy()), None
    print(f"starting at step {start}", flush=True)
    for step in range(start + 1, args.steps + 1):
        loss = train_step(*next(batches))
        if runtime:
            runtime.report(step, loss=loss)
        if step % args.save_every == 0:
            manager.save(checkpoint_number=step)
    print(f"done at step {max(start, args.steps)}, loss {'-' if loss is None else f'{float(loss):.4f}'}")


if __name__ == "__main__":
    main()
