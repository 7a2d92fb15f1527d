"""What a training script may ask of orch. Cheap to import, and harmless where orch is not there.

from orchestrator import runtime
runtime.report(step, loss=loss)        # custom loops; `model.fit` is reported by itself
runtime.on_stop(save_something_small)  # called before training is ended by order
runtime.checkpoint_dir()               # this generation's own directory
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from orchestrator.runtime.progress import Progress

_progress: Progress | None = None
_stop_hooks: list[Callable[[], object]] = []


def report(step: int, **metrics: Any) -> None:
    """Tell how far training is: `step` is the global step, metrics are numbers or scalar tensors.

    Call it at every step: a few messages a second leave, the others cost a clock reading. Tensors are
    read only when a message leaves. Never raises, and does nothing where the script runs without orch.
    """
    if _progress is not None:
        _progress.report(step, metrics)


def on_stop(hook: Callable[[], object]) -> None:
    """Have `hook()` called, in another thread, when training is ended by order. It has two seconds at most."""
    _stop_hooks.append(hook)


def checkpoint_dir() -> str | None:
    """The directory for this generation's checkpoints, seeded with the last good one; None without orch."""
    return os.environ.get("ORCH_CHECKPOINT_DIR") or None
