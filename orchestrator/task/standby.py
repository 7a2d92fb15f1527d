"""What a standby does otherwise than a task that is about to train: it must not be in the way of those that do.

It imports in a thread of the lowest priority. On Linux each thread has a priority of its own, and one that was lowered
cannot be raised again without privileges: so the main thread, which trains later, is never lowered. NumPy's threads are
made by its import and would stay as low as their maker, so NumPy is imported by the main thread. When memory runs out,
the kernel shall take the standby, and not what trains; that is taken back with the release.
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


class Manners:
    """Those of this process: of a standby until its release, and of a task that is about to train none."""

    def __init__(self, *, is_standby: bool) -> None:
        self.is_standby = is_standby
        self._score_before = _score(OOM_SCORE_ADJ) if is_standby else None

    @staticmethod
    def from_environment() -> Manners:
        """Return those that ORCH_STANDBY asks for, which the script does not see."""
        return Manners(is_standby=bool(os.environ.pop("ORCH_STANDBY", "")))

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
        """Take the place of those that trained."""
        if self._score_before is not None:
            _score(self._score_before)


def _score(wanted: str) -> str | None:
    """Set how soon the kernel takes this process when memory runs out. Return what it was; None where it cannot be."""
    try:
        with open(_OOM_FILE, "r+") as file:
            before = file.read().strip()
            file.seek(0)
            file.write(wanted)
            return before
    except OSError:
        return None
