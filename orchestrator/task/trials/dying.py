"""`orch init --script`: once the steps of the trial are made and something is saved, end as a crash does."""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class Dying:
    """Ends the process by SIGKILL, at the first step after one at which something was seen to be saved."""

    def __init__(self, steps: int, directory: str, die: Callable[[], object]) -> None:
        self._steps, self._directory, self._die = steps, directory, die
        self._is_saved = False

    def stepped(self, step: int) -> None:
        """Take note of a step of the training."""
        if step < self._steps:
            return
        if self._is_saved:
            self._die()
        self._is_saved = any(files for _, _, files in os.walk(self._directory))


def dying(steps: int) -> Dying | None:
    """Return it for this task; None where the run was begun before, and goes on."""
    if os.environ.get("ORCH_GENERATION") != "1":
        return None
    return Dying(
        steps, os.environ.get("ORCH_CHECKPOINT_DIR", ""), lambda: os.kill(os.getpid(), signal.SIGKILL)
    )
