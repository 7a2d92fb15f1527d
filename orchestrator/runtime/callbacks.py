"""The Keras callback that `fit` gets without asking: step, epoch, loss and metrics, a few times a second."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from orchestrator.runtime.progress import Progress


def reporter(base: type, progress: Progress, batches: bool, counted: bool = False) -> Any:
    """An instance of a subclass of that Keras's own `Callback`.

    `batches`: False under a parameter server, where tf_keras refuses callbacks that look at batches.
    `counted`: within an epoch, `iterations` is what it was at its begin and the batches since. On JAX a model
    has no state until the epoch ends; to look at one brings it there, from Keras's callback thread amid a step.
    """
    epoch_seen = 0
    before_epoch: int | None = None

    def iterations(callback: Any) -> int | None:
        variable = getattr(getattr(callback.model, "optimizer", None), "iterations", None)
        if variable is None:
            return None
        return int(variable.numpy() if hasattr(variable, "numpy") else variable)

    def tell(callback: Any, logs: Any) -> None:
        try:
            step = iterations(callback)
            if step is not None:
                progress.report(step, dict(logs or {}), epoch_seen)
        except Exception:  # a figure that cannot be read must not end a training
            return

    def on_train_begin(self: Any, logs: Any = None) -> None:
        tell(self, logs)
        progress.flush()  # what training resumed from, before the first step is traced

    def on_epoch_begin(self: Any, epoch: int, _logs: Any = None) -> None:
        nonlocal epoch_seen, before_epoch
        epoch_seen = int(epoch)
        if counted:
            before_epoch = iterations(self)

    def on_epoch_end(self: Any, epoch: int, logs: Any = None) -> None:
        nonlocal epoch_seen
        epoch_seen = int(epoch)
        tell(self, logs)
        progress.flush()

    # Between two messages a batch costs one clock reading: `iterations` is a device variable, and reading
    # it at every batch would wait for the step to end. With steps_per_execution Keras calls this once for
    # all of them, and `iterations` counts them.
    def on_train_batch_end(self: Any, batch: int, logs: Any = None) -> None:
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
        # Keras 3 calls batch hooks in a thread of its own unless one of the callbacks forbids it; tf_keras
        # turns every batch's logs into numbers unless all of them can do without. We change neither.
        "async_safe": True,
        "_supports_tf_logs": True,
    }
    if batches:
        methods["on_train_batch_end"] = on_train_batch_end
    return type("OrchProgress", (base,), methods)()
