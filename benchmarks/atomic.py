"""`python -m benchmarks.atomic`: what it costs that a step is done whole or not at all.

Two workers train the same layers twice, in turns of 20 steps: as TensorFlow makes the step, and with the edges that
`runtime.rescue` adds. Neighbouring turns are compared, so that other work on the machine is in both; the figure is the
median over the pairs, beside their quartiles.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from statistics import median, quantiles
from typing import Any

STEPS = 20
LAYERS = 12
WIDTH = 192
BATCH = 64


def main(pairs: int) -> int:
    """Start both workers, and print what the first one found."""
    sockets = [socket.socket() for _ in range(2)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()
    workers = []
    for index in range(2):
        config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        env = {
            **os.environ,
            "TF_CONFIG": json.dumps(config),
            "CUDA_VISIBLE_DEVICES": "",
            "TF_CPP_MIN_LOG_LEVEL": "2",
        }
        workers.append(subprocess.Popen([sys.executable, "-m", "benchmarks.atomic", str(pairs)], env=env))
    return max(worker.wait() for worker in workers)


def work(pairs: int) -> None:
    """Train as one of the workers; the first one prints what it has measured."""
    import tensorflow as tf

    from orchestrator.task.transparent.rescue import Rescue

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    chief = strategy.cluster_resolver.task_id == 0
    with tempfile.TemporaryDirectory() as directory:
        rescue = Rescue(None, "worker:0")
        plain, _ = _training(strategy, directory, lambda _manager, _step: lambda function: function)
        atomic, step = _training(
            strategy, directory, lambda manager, step: rescue.loop(manager, step, chief=chief)
        )
        turn_s: list[tuple[float, float]] = []
        for pair in range(pairs + 1):
            first, second = (plain, atomic) if pair % 2 else (atomic, plain)
            took = {each: _turn(each) for each in (first, second)}
            turn_s.append((took[plain], took[atomic]))
    if rescue.refusal() or int(step.numpy()) != (pairs + 1) * STEPS:
        raise SystemExit(f"the steps are not atomic: {rescue.refusal()}")
    if chief:
        costs = [
            100 * (with_edges / without - 1) for without, with_edges in turn_s[1:]
        ]  # the first turn traces
        low, _, high = quantiles(costs, n=4)
        step_ms = 1000 * median(without for without, _ in turn_s[1:]) / STEPS
        print(
            f"a step of {step_ms:.2f} ms; the edges cost {median(costs):+.2f} % (quartiles {low:+.2f} to {high:+.2f} %)"
        )


def _turn(train: Callable[[], None]) -> float:
    began_at = time.perf_counter()
    for _ in range(STEPS):
        train()
    return time.perf_counter() - began_at


def _training(
    strategy: Any, directory: str, rescuing: Callable[[Any, Any], Any]
) -> tuple[Callable[[], None], Any]:
    import tensorflow as tf

    with strategy.scope():
        start = tf.random.stateless_normal((WIDTH, WIDTH), (1, 2)) / WIDTH**0.5
        weights = [tf.Variable(start) for _ in range(LAYERS)]
        speeds = [tf.Variable(tf.zeros_like(start), trainable=False) for _ in weights]
        of_one = tf.VariableAggregation.ONLY_FIRST_REPLICA
        step = tf.Variable(0, dtype=tf.int64, trainable=False, aggregation=of_one)
    checkpoint = tf.train.Checkpoint(step=step, weights=weights, speeds=speeds)
    whole = rescuing(tf.train.CheckpointManager(checkpoint, directory, 1), step)
    examples = tf.random.stateless_normal((BATCH, WIDTH), (3, 4))

    @tf.function  # type: ignore[untyped-decorator]
    def train() -> None:
        def once() -> None:
            with tf.GradientTape() as tape:
                found = examples
                for each in weights:
                    found = tf.tanh(found @ each)
                loss = tf.reduce_mean(found**2)
            gradients = tf.distribute.get_replica_context().all_reduce("mean", tape.gradient(loss, weights))
            for weight, speed, gradient in zip(weights, speeds, gradients, strict=True):
                speed.assign(0.9 * speed + gradient)
                weight.assign_sub(0.001 * speed)
            step.assign_add(1)

        strategy.run(whole(once))

    made: Callable[[], None] = train
    return made, step


if __name__ == "__main__":
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 150
    if "TF_CONFIG" not in os.environ:
        sys.exit(main(number))
    work(number)
