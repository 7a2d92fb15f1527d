"""The Keras callback that is added to every `fit`. It reports step, epoch, loss and metrics a few times per second."""

from __future__ import annotations

from orchestrator.runtime.optimizers import iterations_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from orchestrator.runtime.progress import Progress


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
    epoch_seen = 0
    before_epoch: int | None = None
    before_fit: int | None = None
    epoch_began_at: int | None = None
    batches_seen = 0

    def iterations(callback: Any) -> int:
        if progress.count_steps is not None:
            return progress.count_steps()
        found = iterations_of(callback.model)
        # A train_step may use an optimizer that the model does not hold, or none: then its batches are counted.
        return found if found is not None and found != before_fit else (before_fit or 0) + batches_seen

    def tell(callback: Any, logs: Any) -> None:
        try:
            step = iterations(callback)
            progress.began(
                step
            )  # first when training begins: other callbacks have restored what they restore
            progress.report(step, dict(logs or {}), epoch_seen)
        except Exception as e:  # a value that cannot be read must not end the training
            progress.lost(None, e)

    def expect(callback: Any, steps: int | None, epochs_left: int) -> None:
        """Say where the training ends: after as many epochs of as many steps, from here on."""
        epochs = (getattr(callback, "params", None) or {}).get("epochs")
        progress.epochs = epochs if isinstance(epochs, int) else None
        progress.total = iterations(callback) + steps * epochs_left if steps and epochs_left >= 0 else None

    def on_train_begin(self: Any, logs: Any = None) -> None:
        nonlocal before_fit, batches_seen
        before_fit, batches_seen = None, 0
        tell(self, logs)
        try:
            before_fit = iterations_of(self.model)
        except Exception as e:
            progress.lost(None, e)
        progress.flush()  # reports the step that training resumes from before the first step is traced

    def on_epoch_begin(self: Any, epoch: int, _logs: Any = None) -> None:
        nonlocal epoch_seen, before_epoch, epoch_began_at
        epoch_seen = int(epoch)
        if counted:
            before_epoch = iterations(self)
        try:
            epoch_began_at = iterations(self)
            params = getattr(self, "params", None) or {}
            expect(self, params.get("steps"), int(params.get("epochs") or 0) - epoch_seen)
        except Exception as e:
            progress.lost(None, e)

    def on_epoch_end(self: Any, epoch: int, logs: Any = None) -> None:
        nonlocal epoch_seen
        epoch_seen = int(epoch)
        try:  # a data set of unknown size has shown it now; and what an interrupted epoch lacked is known
            params = getattr(self, "params", None) or {}
            steps = max(params.get("steps") or 0, iterations(self) - (epoch_began_at or 0))
            expect(self, steps, int(params.get("epochs") or 0) - epoch_seen - 1)
        except Exception as e:
            progress.lost(None, e)
        tell(self, logs)
        progress.flush()

    # `iterations` is a device variable, and reading it at every batch would wait for the step to end. So between two
    # messages a batch costs only one reading of the clock. With steps_per_execution Keras calls this once for several
    # steps, and `iterations` counts all of them.
    def on_train_batch_end(self: Any, batch: int, logs: Any = None) -> None:
        nonlocal batches_seen
        batches_seen += 1
        if not progress.due():
            return
        if not counted:
            tell(self, logs)
        elif before_epoch is not None:
            progress.report(before_epoch + int(batch) + 1, dict(logs or {}), epoch_seen)

    methods: dict[str, Callable[..., None] | bool] = {
        "on_train_begin": on_train_begin,
        "on_epoch_begin": on_epoch_begin,
        "on_epoch_end": on_epoch_end,
        # Without these, our callback would slow down the others: Keras 3 calls batch hooks in a separate thread only
        # if all callbacks allow it, and tf_keras converts every batch's logs unless all callbacks can do without.
        "async_safe": True,
        "_supports_tf_logs": True,
    }
    if batches:
        methods["on_train_batch_end"] = on_train_batch_end
    return type("OrchProgress", (base,), methods)()
