"""Writes saves beside the training: a thread writes the copy in memory to the disk.

There is one save at a time: a second save waits until the first is written. An error in the thread is raised in the
training, at the next save or at the end.
"""

from __future__ import annotations

import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class Writer:
    """The thread, while there is something to write."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self.took_s = 0.0
        """How long the last save was written; 0 before the first one."""

    def write(self, work: Callable[[], None]) -> None:
        """Do this work beside the training, after the previous work. Raises what the previous work has raised."""
        self.wait()
        # The thread is not a daemon, so a script that ends meanwhile waits for its last save.
        self._thread = threading.Thread(target=self._run, args=(work,), name="orch-save")
        self._thread.start()

    def _run(self, work: Callable[[], None]) -> None:
        began_at = time.monotonic()
        try:
            work()
        except BaseException as e:
            self._error = e
        self.took_s = time.monotonic() - began_at

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until all is on the disk. Raises what the work has raised."""
        if self._thread is not None:
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                return
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error
