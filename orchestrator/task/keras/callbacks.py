"""The Keras callback that is added to every `fit`. It reports step, epoch, loss and metrics a few times per second."""

from __future__ import annotations

from collections import deque

from orchestrator.task import this_task
from orchestrator.task.keras import alone
from orchestrator.task.keras.optimizers import iterations_of
from orchestrator.task.progress import may_wait

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from orchestrator.task.progress import Progress


def reporter(base: type, progress: Progress, batches: bool, counted: bool = False) -> Any:
    """Return an instance of a subclass of `base`, which is the `Callback` of the Keras in use.

    Args:
        base: Keras 3 or tf_keras has its own.
        progress: where to report to.
        batches: whether to report within epochs. Under a parameter server, tf_keras refuses callbacks for batches.
        counted: compute the step within an epoch as `iterations` at its start plus the batches since. On JAX the
            model's state is written back only at the end of an epoch. Reading it earlier would force that, in the
            middle of a step and from Keras's callback thread.
    """
    callback = type("OrchProgress", (_BatchReports if batches else _Reports, base), {})()
    callback.orch = _Position(progress, counted)
    return callback


class _Position:
    """The position of a training, where Keras does not provide it."""

    def __init__(self, progress: Progress, counted: bool) -> None:
        self.progress, self.counted = progress, counted
        self.epoch = 0
        self.before_epoch: int | None = None
        """The step at the begin of the epoch, where steps are counted."""
        self.epoch_began_at: int | None = None
        self.before_fit: int | None = None
        self.batches = 0
        """Since the begin of `fit`."""
        self.known = (0, 0)
        """The step that was read last, and `batches` then."""
        self.waiting: deque[tuple[int, dict[str, Any]]] = deque()
        """Since then, `batches` and what each batch said. Keras may call from several threads."""
        self.small: dict[str, bool] = {}
        """By metric, whether a value of it was one number: many of a larger one would fill a device."""

    def iterations(self, callback: Any) -> int:
        if self.progress.count_steps is not None:
            return self.progress.count_steps()
        counted = iterations_of(callback.model)
        # A train_step may use an optimizer that the model does not hold, or none: then its batches are counted.
        return (
            counted
            if counted is not None and counted != self.before_fit
            else (self.before_fit or 0) + self.batches
        )

    def report(self, callback: Any, logs: Any) -> None:
        try:
            step = self.iterations(callback)
            # First when training begins: other callbacks have restored by then what they restore.
            self.progress.began(step)
            self.tell(step, logs)
        except Exception as e:  # a value that cannot be read must not end the training
            self.waiting.clear()
            self.progress.lost(None, e)

    def wait(self, logs: Any) -> None:
        """Keep what a batch said until the next message, whose step tells this one's."""
        for name in () if not logs or logs.keys() == self.small.keys() else logs:
            self.small.setdefault(name, may_wait(logs[name]))
        self.waiting.append((self.batches, {name: logs[name] for name in logs or () if self.small[name]}))

    def tell(self, step: int, logs: Any) -> None:
        """Report what waits, at steps that lie evenly between the one that was read last and this one, and this one."""
        (before, first), last = self.known, self.batches
        self.known = step, last
        while self.waiting:
            number, said = self.waiting.popleft()
            part = (number - first) / (last - first) if first < number <= last else 1.0
            self.progress.hold(before + round((step - before) * part), said)
        self.progress.report(step, dict(logs or {}), self.epoch)

    def expect(self, callback: Any, steps: int | None, epochs_done: int) -> None:
        """Report at which step the training will end, from the epochs that are left and their number of steps.

        A trial of `orch scale` or `orch prove` ends by its own count, long before the epochs that it asks for.
        """
        if this_task.measuring is not None:
            return
        params = getattr(callback, "params", None) or {}
        epochs = params.get("epochs")
        left = int(epochs or 0) - epochs_done
        self.progress.epochs = epochs if isinstance(epochs, int) else None
        done, this_task.batches_done = this_task.batches_done, 0
        self.progress.total = self.iterations(callback) - done + steps * left if steps and left >= 0 else None


class _Reports:
    """The methods of the callback. Keras sets `model` and `params`, and calls it in the main thread."""

    orch: _Position
    # Without these, our callback would slow down the others: Keras 3 calls batch hooks in a separate thread only
    # if all callbacks allow it, and tf_keras converts every batch's logs unless all callbacks can do without.
    async_safe = True
    _supports_tf_logs = True

    def on_train_begin(self, logs: Any = None) -> None:
        alone.refuse(self.model)  # type: ignore[attr-defined]  # Keras sets it
        here = self.orch
        here.before_fit, here.batches = None, 0
        here.report(self, logs)
        try:
            here.before_fit = iterations_of(self.model)  # type: ignore[attr-defined]  # Keras sets it
        except Exception as e:
            here.progress.lost(None, e)
        here.progress.flush()  # reports the step that training resumes from before the first step is traced

    def on_epoch_begin(self, epoch: int, _logs: Any = None) -> None:
        here = self.orch
        here.epoch = int(epoch)
        try:
            here.epoch_began_at = here.iterations(self)
            here.known = here.epoch_began_at, here.batches
            if here.counted:
                here.before_epoch = here.epoch_began_at
            here.expect(self, _steps_per_epoch(self), here.epoch)
        except Exception as e:
            here.progress.lost(None, e)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        here = self.orch
        here.epoch = int(epoch)
        try:  # a data set of unknown size has shown it now; and what an interrupted epoch lacked is known
            steps = max(_steps_per_epoch(self) or 0, here.iterations(self) - (here.epoch_began_at or 0))
            here.expect(self, steps, here.epoch + 1)
        except Exception as e:
            here.progress.lost(None, e)
        here.report(self, logs)
        here.progress.flush()


class _BatchReports(_Reports):
    """The same, with reports within epochs.

    `iterations` and what a batch says are on a device, and reading them at every batch would wait for the step to end.
    So between two messages they wait unread: every value is told, and none is waited for. With steps_per_execution
    Keras calls this once for several steps, and `iterations` counts all of them.
    """

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        here = self.orch
        here.batches += 1
        if not here.progress.due():
            here.wait(logs)
        elif not here.counted:
            here.report(self, logs)
        elif here.before_epoch is not None:
            here.tell(here.before_epoch + int(batch) + 1, logs)


def _steps_per_epoch(callback: Any) -> int | None:
    steps: int | None = (getattr(callback, "params", None) or {}).get("steps")
    return steps
