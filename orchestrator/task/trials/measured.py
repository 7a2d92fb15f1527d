"""`orch scale`: train so many steps, measure them, and end with exit code 0.

The steps before are warm-up: tracing, first batches, caches. The measured steps are cut into blocks, and only at the
end of a block is a tensor read, which waits for the device. Validation, and what other callbacks do between two epochs,
do not count. Where the data can be repeated, the same steps are then trained once more with one batch that lies in
memory: what they take less is the wait for input.
"""

from __future__ import annotations

import sys
import time

from orchestrator.both.trial_records import MEASURED_PREFIX
from orchestrator.task.keras import fit_arguments
from orchestrator.task.keras.fit_arguments import DEFAULT_BATCH
from orchestrator.task.progress import as_number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from orchestrator.task.progress import Progress


BLOCKS = 5
"""How many times the pace is taken: their spread is the interval that people see."""

_LEFT_OUT = ("BackupAndRestore", "ModelCheckpoint", "TensorBoard", "CSVLogger", "EarlyStopping")
"""Callbacks that save now and then would be in some blocks and not in others."""

_EPOCHS = 1_000_000
"""More than the steps can take: a script whose data are few repeats them."""


class Course:
    """The steps of one training, on their way from warm-up to the end."""

    def __init__(self, steps: int, warmup: int, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._warmup = warmup
        self._ends = [warmup + round(steps * (i + 1) / BLOCKS) for i in range(BLOCKS)]
        self._began: float | None = None
        self._last = 0.0
        self._paused: float | None = None
        self.step = 0
        self._block_from = 0
        self.paces: list[float] = []
        """Seconds a step, of each block."""
        self.losses: list[tuple[int, float]] = []

    @property
    def is_over(self) -> bool:
        return len(self.paces) == len(self._ends)

    def advance(self, steps: int, metrics: Mapping[str, Any] | None) -> None:
        """Count steps. At the end of a block `metrics` is read, so that the device has done them."""
        self.resume()
        self.step += steps
        self._last = self._now()
        if self.is_over:
            return
        if self._began is None:
            if self.step >= self._warmup:
                self._read(metrics)
                self._began, self._block_from = self._now(), self.step
        elif self.step >= self._ends[len(self.paces)]:
            self._read(metrics)
            now = self._now()
            self.paces.append((now - self._began) / (self.step - self._block_from))
            self._began, self._block_from = now, self.step

    def _read(self, metrics: Mapping[str, Any] | None) -> None:
        loss = as_number((metrics or {}).get("loss"))
        if loss is not None:
            self.losses.append((self.step, loss))

    def pause(self) -> None:
        """Stop the clock at the last step: what follows is not training."""
        if self._paused is None and self._last:
            self._paused = self._last

    def resume(self) -> None:
        """Start the clock again."""
        if self._paused is not None and self._began is not None:
            self._began += self._now() - self._paused
        self._paused = None

    def figures(self) -> dict[str, float]:
        """Return what was measured, by name: seconds, and losses at their steps."""
        figures: dict[str, float] = {"steps": float(self.step)}
        if self.paces:
            ordered = sorted(self.paces)
            figures |= {
                "step_s": ordered[len(ordered) // 2],
                "step_s_low": ordered[0],
                "step_s_high": ordered[-1],
            }
        figures |= {f"loss@{step}": loss for step, loss in self.losses}
        return figures


class Measuring:
    """Measures the first training of a script, of Keras's `fit` or of a loop that reports its steps."""

    def __init__(self, options: Mapping[str, Any], progress: Progress) -> None:
        self._steps, self._warmup = int(options["steps"]), int(options["warmup"])
        self._progress = progress
        self._reported: int | None = None
        self._course = self._new()

    def _new(self) -> Course:
        return Course(self._steps, self._warmup)

    def fit(self, fit: Callable[..., Any], model: Any, base: type, given: dict[str, Any]) -> Any:
        """Train by this `fit`, and end the script.

        Args:
            fit: Keras's own.
            base: its class of callbacks.
        """
        callbacks = [each for each in fit_arguments.callbacks_of(given) if not is_left_out(each)] + [
            _timer(base, self._course)
        ]
        fit(model, **{**given, "epochs": _EPOCHS, "callbacks": callbacks})
        figures = self._course.figures()
        per_epoch = getattr(callbacks[-1], "steps_per_epoch", None)
        figures |= {"steps_per_epoch": float(per_epoch)} if per_epoch else {}
        batch = batch_of(given)
        figures |= {"batch": float(batch)} if batch else {}
        repeated = one_batch(given) if self._course.is_over else None
        if repeated is not None:
            again = self._new()
            timer = _timer(base, again)
            length = self._warmup + self._steps
            fit(model, x=repeated, epochs=1, steps_per_epoch=length, verbose=0, callbacks=[timer])
            figures |= {"input_free_s": again.figures().get("step_s", figures["step_s"])}
        self._end(figures)

    def report(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Count a step that a training loop of the script's own reports."""
        if self._reported is not None and step > self._reported:
            self._course.advance(step - self._reported, metrics)
        self._reported = step
        if self._course.is_over:
            self._end(self._course.figures())

    def _end(self, figures: Mapping[str, float]) -> None:
        self._progress.report(
            self._course.step, {MEASURED_PREFIX + name: value for name, value in figures.items()}
        )
        self._progress.flush()
        raise SystemExit(0)


def is_left_out(callback: Any) -> bool:
    """Return whether this is a callback of Keras that saves, or may end the fit."""
    return any(kind.__name__ in _LEFT_OUT and "keras" in kind.__module__ for kind in type(callback).__mro__)


def _timer(base: type, course: Course) -> Any:
    """Return a callback of this Keras that advances the course with each batch, and ends the fit with it."""

    class Timer(base):  # type: ignore[misc]
        steps_per_epoch: int | None = None
        batch_seen = 0

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002 (Keras's signature)
            self.batch_seen = 0
            course.resume()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            steps, self.batch_seen = int(batch) + 1 - self.batch_seen, int(batch) + 1
            course.advance(steps, logs)
            if course.is_over:
                self.steps_per_epoch = (self.params or {}).get("steps")
                self.model.stop_training = True

        def on_test_begin(self, logs: Any = None) -> None:  # noqa: ARG002
            course.pause()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
            course.pause()
            self.steps_per_epoch = (self.params or {}).get("steps") or self.batch_seen

    return Timer()


def _is_dataset(x: Any) -> bool:
    tf = sys.modules.get("tensorflow")
    return tf is not None and isinstance(x, tf.data.Dataset)


def _are_arrays(x: Any) -> bool:
    parts = list(x.values()) if isinstance(x, dict) else x if isinstance(x, (list, tuple)) else [x]
    return bool(parts) and all(hasattr(part, "shape") and hasattr(part, "__getitem__") for part in parts)


def batch_of(given: Mapping[str, Any]) -> int | None:
    """Return how many examples a step of this `fit` takes, of all replicas together; None if unknown."""
    x = given.get("x")
    if _is_dataset(x):
        from tensorflow.python.data.experimental.ops import distribute

        size = int(distribute.compute_batch_size(x))
        return size if size > 0 else None
    return int(given.get("batch_size") or DEFAULT_BATCH) if _are_arrays(x) else None


def one_batch(given: Mapping[str, Any]) -> Any:
    """Return a tf.data that repeats the first batch from memory; None if the data cannot be repeated."""
    x: Any = given.get("x")
    y = given.get("y")
    if _is_dataset(x):
        return x.take(1).cache().repeat()
    tf = sys.modules.get("tensorflow")
    if tf is None or not _are_arrays(x) or not _are_arrays(y):
        return None
    size = int(given.get("batch_size") or DEFAULT_BATCH)
    first = tf.nest.map_structure(lambda part: part[:size], (x, y))
    return tf.data.Dataset.from_tensors(first).repeat()
