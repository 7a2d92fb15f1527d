"""Trains a few steps with a custom loop, saves, and then waits to be killed. It serves to measure starts.

    python comeback.py CHECKPOINTS TIMES

writes to TIMES.<task index> when it began, had imported, met the others, restored, traced and done its first step
(CLOCK_BOOTTIME, in seconds). Whenever the number in TIMES.more grows, it trains and saves once more, and writes that
number to TIMES.<task index>.saved.
"""

import time

BEGAN = time.clock_gettime(time.CLOCK_BOOTTIME)

import json  # noqa: E402 (what follows is timed)
import os  # noqa: E402
import sys  # noqa: E402

import tensorflow as tf  # noqa: E402

from orchestrator import runtime  # noqa: E402

STEPS = 10


def now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def write(path: str, value: object) -> None:
    with open(f"{path}.new", "w") as file:
        json.dump(value, file)
    os.replace(f"{path}.new", path)


def main() -> None:
    instants = {"began": BEGAN, "import": now()}
    checkpoints, times = sys.argv[1:]
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    instants["rendezvous"] = now()
    index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    with strategy.scope():
        weights = tf.Variable(tf.random.stateless_normal((256, 10), (1, 2)))
        step = tf.Variable(0, dtype=tf.int64)
    # Under orch each task has its own directory; by hand, the caller has made one for each.
    directory = os.environ.get("ORCH_CHECKPOINT_DIR") or f"{checkpoints}/{index}"
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(weights=weights, step=step), directory, 2)
    manager.restore_or_initialize()
    instants["restore"] = now()

    @tf.function
    def train(batch: tf.Tensor) -> tf.Tensor:
        def once(batch: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(batch @ weights))
            (gradient,) = tape.gradient(loss, [weights])
            gradient = tf.distribute.get_replica_context().all_reduce("mean", gradient)
            weights.assign_sub(0.01 * gradient)
            return loss

        return strategy.run(once, (batch,))

    batch = tf.random.stateless_normal((64, 256), (3, 4))
    train.get_concrete_function(batch)
    instants["tracing"] = now()
    is_first, more = True, 0
    while True:
        for _ in range(STEPS):
            train(batch)
            step.assign_add(1)
            if is_first:
                is_first = False
                write(f"{times}.{index}", {**instants, "first step": now()})
            runtime.report(int(step.numpy()))
        manager.save()
        write(f"{times}.{index}.saved", more)
        more = wait_for_more(f"{times}.more", more)


def wait_for_more(path: str, known: int) -> int:
    """Wait until more steps are wanted."""
    while True:
        time.sleep(0.05)
        try:
            with open(path) as file:
                wanted = int(file.read() or 0)
        except FileNotFoundError:
            continue
        if wanted > known:
            return wanted


if __name__ == "__main__":
    main()
