"""Facts about this process: set while it starts, and read by the code that runs in it.

Without orch nothing is set: `orchestrator.runtime` then does nothing.
"""

from __future__ import annotations

import os

from orchestrator.both import hostdir

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from orchestrator.protocol.reports import Saving
    from orchestrator.task.link import Link
    from orchestrator.task.progress import Progress
    from orchestrator.task.stages import Stages

progress: Progress | None = None
measuring: Any = None
"""What `orch scale` or `orch prove` asks of this task: `trials.measured.Measuring`, or `trials.proving.Proving`."""
link: Link | None = None
options: Mapping[str, Any] = {}
stages: Stages | None = None
strategy: Any = None
"""The script's MultiWorkerMirroredStrategy."""
rescue: Any = None
"""What hands over the state of a fit whose peer has died: `transparent.rescue.Rescue`."""
protected: dict[str, Any] = {}
"""What the script gave to `runtime.protect`, by name: each a `transparent.remembered.Protected`."""
held: Any = None
"""What of it a loop holds, once `runtime.rescue` was called: `transparent.protected.Held`."""
stop_hooks: list[Callable[[], object]] = []
batches_done = 0
"""How many batches of its first epoch a fit that resumes has behind it."""
has_own_hooks = False
"""Whether some of them are the script's, which are not called before a rescue."""


def tell_saving(saving: Saving) -> None:
    """Report how often this task saves, together with its next step."""
    if progress is not None:
        progress.saving = saving


def replicas() -> int:
    """Return how many replicas train now; 1 without orch, and where none may be left out (no `replicas_min`)."""
    return _number("ORCH_REPLICAS")


def replicas_planned() -> int:
    """Return how many replicas train while none is left out. With `replicas_min` they may be more than `replicas()`."""
    return _number("ORCH_REPLICAS_PLANNED")


def on_shrink() -> str:
    """Return what to do with fewer replicas, by the spec: `hold_batch`, `scale_lr` or `ignore`."""
    return os.environ.get("ORCH_ON_SHRINK") or "ignore"


def _number(name: str) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() and int(text) > 0 else 1


def checkpoint_dir() -> str | None:
    """Return the directory for this generation's checkpoints, seeded with the last good one; None without orch."""
    return os.environ.get("ORCH_CHECKPOINT_DIR") or None


def directory() -> str | None:
    """Return this task's directory on its host, which all its generations share; None where no shim has started it."""
    place = _place()
    return hostdir.task_dir(*place) if all(place) else None


def scratch() -> str:
    """Return where a task that is not the chief writes what is not kept. It goes with the run, as its generation does.

    A process that no shim has started has a directory that goes with it.
    """
    if made_by_shim := checkpoint_dir():
        return made_by_shim
    place, generation = _place(), os.environ.get("ORCH_GENERATION")
    if all(place) and generation:
        return os.path.join(hostdir.generation_dir(*place, int(generation)), "scratch")
    import atexit
    import shutil
    import tempfile

    made = tempfile.mkdtemp(prefix="orch-scratch-")
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


def _place() -> tuple[str, str, str]:
    return (
        os.environ.get("ORCH_HOST_DIR", ""),
        os.environ.get("ORCH_RUN", ""),
        os.environ.get("ORCH_TASK", ""),
    )
