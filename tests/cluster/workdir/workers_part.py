"""Takes another collective on worker 1 than on worker 0 from the fourth step on, as different models would."""

from __future__ import annotations

import os

import tensorflow as tf

from orchestrator import runtime


def main() -> None:
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    is_odd = os.environ["ORCH_TASK"] == "worker:1"

    @tf.function
    def step(size: int) -> tf.Tensor:
        def reduce() -> tf.Tensor:
            return tf.distribute.get_replica_context().all_reduce("sum", tf.ones([size]))

        return strategy.run(reduce)

    for number in range(1, 8):
        step(6 if is_odd and number > 3 else 5)
        runtime.report(number)


if __name__ == "__main__":
    main()
