"""The API for training scripts. It is cheap to import, and does nothing where the script runs without orch.

from orchestrator import runtime
runtime.report(step, loss=loss)        # for custom loops; `model.fit` reports by itself
if runtime.should_save(): save()       # as often as costs least; in all processes at the same step
runtime.on_stop(save_something_small)  # called before orch stops the training
runtime.checkpoint_dir()               # this generation's own directory
runtime.replicas_planned()             # and replicas(): fewer after a lost host, with `replicas_min`
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from orchestrator.protocol.reports import Saving
    from orchestrator.runtime.link import Link
    from orchestrator.runtime.measured import Measuring
    from orchestrator.runtime.progress import Progress
    from orchestrator.runtime.proving import Proving

_progress: Progress | None = None
_measuring: Measuring | Proving | None = None
_link: Link | None = None
_options: Mapping[str, Any] = {}
_strategy: Any = None
"""The script's MultiWorkerMirroredStrategy."""
_stop_hooks: list[Callable[[], object]] = []


def report(step: int, *, total: int | None = None, **metrics: Any) -> None:
    """Report progress: `step` is the global step, and metrics are numbers or scalar tensors.

    `total` is the global step at which the training ends: status and page then show how much is done, and until when.

    Call it at every step. A few messages per second are sent; a call that sends none costs one reading of the clock.
    Tensors are read only when a message is sent. It never raises, and does nothing without orch; `orch scale` ends
    the script in it once its steps are measured.
    """
    if _progress is not None:
        if total is not None:
            _progress.total = total
        _progress.report(step, metrics)
    if _measuring is not None:
        _measuring.report(step, metrics)


def tell_saving(saving: Saving) -> None:
    """Report how often this task saves, with its next step."""
    if _progress is not None:
        _progress.saving = saving


def should_save(*, agree: Callable[[float], float] | None = None) -> bool:
    """Return whether a loop is to save now. Call it once in each step, in all processes that train together.

        if runtime.should_save():
            manager.save(checkpoint_number=step)

    How often is `checkpoint: {every: …}` of the spec; `auto` finds what costs least from how long your saves take.
    All processes get the same answer at the same step. They agree through MultiWorkerMirroredStrategy, Horovod,
    torch.distributed or JAX, whichever the script has begun to use. Where it uses none, the chief alone gets True.

    Args:
        agree: returns rank 0's number in every process, for a library that is none of these.
    """
    from orchestrator.runtime import loops

    return loops.should_save(agree)


def on_stop(hook: Callable[[], object]) -> None:
    """Call `hook()` in another thread before orch stops the training. It may take two seconds at most."""
    _stop_hooks.append(hook)


def replicas() -> int:
    """Return how many replicas train now; 1 without orch, and where none may be left out (no `replicas_min`)."""
    return _number("ORCH_REPLICAS")


def replicas_planned() -> int:
    """Return how many replicas train while none is left out. With `replicas_min` they may be more than `replicas()`."""
    return _number("ORCH_REPLICAS_PLANNED")


def on_shrink() -> str:
    """Return what the spec wants with fewer replicas: `hold_batch`, `scale_lr` or `ignore`."""
    return os.environ.get("ORCH_ON_SHRINK") or "ignore"


def _number(name: str) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() and int(text) > 0 else 1


def checkpoint_dir() -> str | None:
    """Return the directory for this generation's checkpoints, seeded with the last good one; None without orch."""
    return os.environ.get("ORCH_CHECKPOINT_DIR") or None
