"""Split a model that is too large for one device by hand: `tf.device` says where each part is.

Only one device works at a time, so this saves memory, not time. Without enough GPUs it uses the CPU as several devices,
for a test. In a cluster spec: `strategy: single`, and one task with as many GPUs as parts.

    python examples/model_parallel.py --parts 3 --steps 100
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


def devices_for(parts: int) -> list[str]:
    """Return the names of GPUs, else of logical CPUs, which must be made before TensorFlow's first operation."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * parts)
    gpus = tf.config.list_logical_devices("GPU")
    found = gpus if len(gpus) >= parts else tf.config.list_logical_devices("CPU")
    return [device.name for device in found[:parts]]


def layers() -> list[keras.layers.Layer]:
    return [
        keras.layers.Dense(512, "relu"),
        keras.layers.Dense(256, "relu"),
        keras.layers.Dense(128, "relu"),
        keras.layers.Dense(10),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", type=int, choices=[2, 3, 4], default=2)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--save-every", type=int, default=20, metavar="STEPS")
    args = parser.parse_args()

    devices, stack = devices_for(args.parts), layers()
    each = len(stack) // args.parts
    cuts = [stack[i * each : (i + 1) * each] for i in range(args.parts - 1)] + [
        stack[(args.parts - 1) * each :]
    ]
    parts, optimizers, width = [], [], 64
    for i, (device, own) in enumerate(zip(devices, cuts, strict=True)):
        with tf.device(device):  # a layer's variables are where it is built
            part = keras.Sequential(own)
            part.build((None, width))
            # One optimizer for each part: its slots are created on the device of their variables.
            optimizer = keras.optimizers.Adam(1e-3)
            optimizer.build(part.trainable_variables)
        places = {variable.value.device for variable in part.trainable_variables}
        print(f"part {i}: {part.count_params()} parameters on {', '.join(sorted(places))}", flush=True)
        parts.append(part)
        optimizers.append(optimizer)
        width = own[-1].units
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def train_step(images, labels):
        with tf.GradientTape() as tape:
            value = images
            for device, part in zip(devices, parts, strict=True):
                with tf.device(
                    device
                ):  # only activations are sent between the parts, and their gradients back
                    value = part(value, training=True)
            with tf.device(devices[-1]):
                loss = loss_of(labels, value)
        variables = [part.trainable_variables for part in parts]
        for optimizer, gradients, own in zip(
            optimizers, tape.gradient(loss, variables), variables, strict=True
        ):
            optimizer.apply_gradients(zip(gradients, own, strict=True))
        return loss

    directory = os.environ.get("ORCH_CHECKPOINT_DIR", "checkpoints")
    checkpoint = tf.train.Checkpoint(parts=parts, optimizers=optimizers)
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
