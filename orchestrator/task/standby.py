"""How a standby differs from a task that is about to train: it must not disturb the tasks that train.

It imports in a thread of the lowest priority. On Linux each thread has a priority of its own, and a lowered one cannot
be raised again without privileges, so the main thread, which trains later, is never lowered. NumPy's threads are made
by its import and inherit the priority, so the main thread imports NumPy. If memory runs out, the kernel is to kill the
standby and not a task that trains; this setting is undone at the release.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    T = TypeVar("T")

NICE = 19
OOM_SCORE_ADJ = "900"
_OOM_FILE = "/proc/self/oom_score_adj"


class Restraints:
    """The restraints of a standby until its release. A task that is about to train has none."""

    def __init__(self, *, is_standby: bool) -> None:
        self.is_standby = is_standby
        self._score_before = _score(OOM_SCORE_ADJ) if is_standby else None

    @staticmethod
    def from_environment() -> Restraints:
        """Return the restraints that ORCH_STANDBY asks for, and hide that variable from the script."""
        return Restraints(is_standby=bool(os.environ.pop("ORCH_STANDBY", "")))

    def imports(self, work: Callable[[], T], named: set[str]) -> T:
        """Do the imports; `named` says which frameworks are among them."""
        if not self.is_standby or not named:
            return work()
        import importlib.util
        import threading

        if importlib.util.find_spec("numpy") is not None:
            import numpy  # noqa: F401 - its threads keep the priority of the thread that imports it
        done: list[T] = []

        def lowered() -> None:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
            done.append(work())

        thread = threading.Thread(target=lowered, name="orch-imports", daemon=True)
        thread.start()
        thread.join()
        return done[0] if done else work()

    def released(self) -> None:
        """End the restraints: this task trains now."""
        if self._score_before is not None:
            _score(self._score_before)


def _score(wanted: str) -> str | None:
    """Set how soon the kernel kills this process when memory runs out. Return the old value; None if that fails."""
    try:
        with open(_OOM_FILE, "r+") as file:
            before = file.read().strip()
            file.seek(0)
            file.write(wanted)
            return before
    except OSError:
        return None
