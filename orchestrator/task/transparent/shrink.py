"""Fewer replicas than planned: the global batch is held, or the learning rate follows by the linear rule.

`hold_batch`: the remaining replicas take larger shares of the same batch, so the training is the same as with all
replicas. `scale_lr`: each replica keeps its batch, and the learning rate is multiplied by the remaining share of the
global batch: at once where it shrinks, and over a warm-up where it grows again, since a sudden large rate may undo what
was trained. It is multiplied where it is applied, so schedules, callbacks and checkpoints see the script's own rate.
"""

from __future__ import annotations

import functools
import sys

from orchestrator.task import this_task

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from orchestrator.task.transparent.reporter import Reporter

WARMUP_STEPS = 100
"""The number of steps within which the learning rate grows back."""


class Shrink:
    """What fewer replicas than planned mean for the batch and the learning rate of a transparent script."""

    def __init__(self, options: dict[str, Any], replicas: int, report: Reporter) -> None:
        self.way = str(options.get("on_shrink") or "ignore")
        self.replicas = replicas
        self.planned = max(replicas, this_task.replicas_planned())
        self._per_replica = options.get("batch") == "per_replica"
        self.report = report
        self._variable: Any = None
        self._from = 1.0
        self._steps = 0
        self._is_begun = False

    @property
    def batch_factor(self) -> tuple[int, int]:
        """Return (up, down): the global batch is the script's, times `up`, divided by `down`."""
        if self._per_replica:
            return (self.planned if self.way == "hold_batch" else self.replicas), 1
        return (self.replicas, self.planned) if self.way == "scale_lr" else (1, 1)

    @property
    def scale(self) -> float:
        """Return the global batch as a multiple of the script's."""
        up, down = self.batch_factor
        return up / down

    @property
    def rate(self) -> float:
        """Return the present factor of the learning rate."""
        if self.way != "scale_lr":
            return 1.0
        target = self.replicas / self.planned
        if target <= self._from:
            return target
        return self._from + (target - self._from) * min(1.0, self._steps / WARMUP_STEPS)

    def install(self, library: str, strategy: Any) -> None:
        """Patch the optimizers of this Keras, if the learning rate is to follow."""
        if self.way != "scale_lr":
            return
        if library != "keras":
            raise self.report.unsupported(
                "on_shrink: scale_lr needs Keras 3, and this script uses tf_keras: use hold_batch"
            )
        import tensorflow as tf

        with strategy.scope():
            self._variable = tf.Variable(
                1.0, trainable=False, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA
            )
        variable = self._variable
        owner: Any = sys.modules["keras.src.backend.tensorflow.optimizer"].TFOptimizer
        update = owner._backend_update_step

        @functools.wraps(update)
        def _backend_update_step(
            optimizer: Any, grads: Any, trainable_variables: Any, learning_rate: Any
        ) -> None:
            rate = tf.convert_to_tensor(learning_rate)
            update(optimizer, grads, trainable_variables, rate * tf.cast(variable, rate.dtype))

        owner._backend_update_step = _backend_update_step

    def begin(self, rate: float | None) -> None:
        """Begin a fit: go on from the rate of its backup; None if it has none."""
        if self.way != "scale_lr" or (rate is None and self._is_begun):
            return
        target = self.replicas / self.planned
        self._is_begun = True
        rate = target if rate is None else rate
        self._from, self._steps = rate, 0
        if rate != target:
            how = f" within {WARMUP_STEPS} steps" if target > rate else ""
            self.report(
                "rate",
                f"{self.replicas} of {self.planned} replicas train, each with the batch that it had: the learning rate "
                f"goes from {rate:.3g} to {target:.3g} times the script's{how}",
            )
        self._variable.assign(self.rate)

    def advance(self, steps: int) -> None:
        """Count steps of the warm-up. All workers must call it alike."""
        if self._variable is None or self._steps >= WARMUP_STEPS:
            return
        self._steps += steps
        self._variable.assign(self.rate)
