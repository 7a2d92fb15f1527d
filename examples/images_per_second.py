"""Measure how many images per second one or more machines train, with the ConvNet of mirrored.py.

Run it with one, two and four replicas, and compare: each replica has its own batch, so with ideal scaling N replicas
train N times the images. The images are in memory and nothing is saved. What is missing to the ideal is the cost of
adding up gradients, and of waiting for the slowest replica. `--cores` gives each worker its own processor core (a
MirroredStrategy gets all of them); otherwise one replica would already use all cores.

    python examples/images_per_second.py --cores 0
    orch up cluster_specs/images_per_second.yaml --follow
"""

import argparse
import json
import os
import time

import keras
import tensorflow as tf
from mirrored import build
from sklearn.datasets import load_digits

try:
    from orchestrator import runtime
except ImportError:  # started without orch
    runtime = None

STRATEGIES = {
    "mirrored": tf.distribute.MirroredStrategy,
    "multi_worker_mirrored": tf.distribute.MultiWorkerMirroredStrategy,
}


def pin(cores: list[int], strategy: str) -> None:
    """Pin this process to its cores, before TensorFlow starts one thread per core."""
    index = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {}).get("index", 0)
    mine = cores if strategy == "mirrored" else [cores[index % len(cores)]]
    os.sched_setaffinity(0, mine)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--strategy", choices=STRATEGIES, default="multi_worker_mirrored")
    parser.add_argument("--batch", type=int, default=128, help="of one replica")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--warm-up", type=int, default=20, metavar="STEPS", help="before it is measured")
    parser.add_argument("--cores", help="to pin to, such as 0,1")
    args = parser.parse_args()
    if args.cores:
        pin([int(core) for core in args.cores.split(",")], args.strategy)

    keras.utils.set_random_seed(7)
    strategy = STRATEGIES[args.strategy]()
    replicas = strategy.num_replicas_in_sync
    with strategy.scope():
        model = build()
        optimizer = keras.optimizers.SGD(0.01)
        optimizer.build(model.trainable_variables)

    digits = load_digits()
    images = (digits.images[: args.batch, ..., None] / 16.0).astype("float32")
    labels = digits.target[: args.batch].astype("int32")

    def replica_step():
        with tf.GradientTape() as tape:
            losses = keras.losses.sparse_categorical_crossentropy(labels, model(images, training=True))
            loss = tf.nn.compute_average_loss(losses, global_batch_size=args.batch * replicas)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def train_step():
        return strategy.experimental_local_results(strategy.run(replica_step))[0]

    began = 0.0
    for step in range(1, args.warm_up + args.steps + 1):
        float(train_step())  # waits for the step to end
        if runtime:
            runtime.report(step)
        if step == args.warm_up:
            began = time.monotonic()
    step_s = (time.monotonic() - began) / args.steps
    if strategy.cluster_resolver is None or strategy.cluster_resolver.task_id in (
        None,
        0,
    ):  # only one worker prints
        rate = replicas * args.batch / step_s
        print(f"{replicas} replica(s), {rate:.0f} images/s, {step_s * 1e3:.2f} ms a step", flush=True)


if __name__ == "__main__":
    main()
