"""A tiny model under MultiWorkerMirroredStrategy with tf.train.CheckpointManager. Its options make it fail."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time

import keras
import tensorflow as tf
from fake_trainer import give_away

from orchestrator import runtime

SAVED_AND_ASKS_TO_BE_STARTED_AGAIN = 42


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--pace", type=float, default=0.1, help="seconds a step, at least")
    parser.add_argument("--save-every", type=int, default=5)
    parser.add_argument(
        "--no-data", action="store_true", help="on every task alike, when TensorFlow is imported"
    )
    parser.add_argument("--exit-42-at", type=int, help="after this step, once, as one who was told to leave")
    parser.add_argument("--lose-port", action="store_true", help="once, worker 1's, to another process")
    parser.add_argument("--restore-nothing", action="store_true", help="though a checkpoint was given")
    parser.add_argument(
        "--late-failure", action="store_true", help="all but the chief want a step more than it has"
    )
    return parser.parse_args()


class Trainer:
    """One weight for each of eight inputs, and an optimizer that counts the steps."""

    def __init__(self) -> None:
        self._strategy = tf.distribute.MultiWorkerMirroredStrategy()
        with self._strategy.scope():
            self._model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
            self._optimizer = keras.optimizers.SGD(1e-3)
            self._optimizer.build(self._model.trainable_variables)
        checkpoint = tf.train.Checkpoint(model=self._model, optimizer=self._optimizer)
        directory = os.environ["ORCH_CHECKPOINT_DIR"]
        self._checkpoint = checkpoint
        self._manager = tf.train.CheckpointManager(checkpoint, directory, max_to_keep=3)
        self._run = tf.function(self._all_replicas)

    @property
    def is_chief(self) -> bool:
        return self._strategy.cluster_resolver.task_id in (None, 0)

    def restore(self) -> int:
        self._checkpoint.restore(self._manager.latest_checkpoint)
        return int(self._optimizer.iterations.numpy())

    def step(self) -> float:
        return float(self._run())

    def save(self, step: int) -> None:
        self._manager.save(checkpoint_number=step)

    def _all_replicas(self) -> tf.Tensor:
        return self._strategy.reduce("SUM", self._strategy.run(self._one_replica), axis=None)

    def _one_replica(self) -> tf.Tensor:
        inputs = tf.random.stateless_normal((4, 8), seed=(1, 2))
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(
                tf.square(self._model(inputs) - tf.reduce_sum(inputs, axis=1, keepdims=True))
            )
        variables = self._model.trainable_variables
        self._optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss


def main() -> int:
    options = arguments()
    if options.no_data:
        raise FileNotFoundError("no data set here")
    if options.lose_port and (os.environ["ORCH_TASK"], os.environ["ORCH_RESTARTS"]) == ("worker:1", "0"):
        config = json.loads(os.environ["TF_CONFIG"])
        give_away(int(config["cluster"]["worker"][1].rpartition(":")[2]))
    trainer = Trainer()
    start = 0 if options.restore_nothing and os.environ["ORCH_RESTARTS"] != "0" else trainer.restore()
    print(f"starts at step {start}", flush=True)
    for step in range(start + 1, options.steps + 1):
        time.sleep(options.pace)
        runtime.report(step, loss=trainer.step())
        leaves = step == options.exit_42_at and os.environ["ORCH_RESTARTS"] == "0"
        if leaves or step % options.save_every == 0:
            trainer.save(step)
        if leaves:
            return SAVED_AND_ASKS_TO_BE_STARTED_AGAIN
    print(f"done at step {options.steps}", flush=True)
    if options.late_failure and not trainer.is_chief:
        trainer.step()  # one step more than the chief: TensorFlow waits for it, and raises once it is gone
    return 0


if __name__ == "__main__":
    sys.exit(main())
