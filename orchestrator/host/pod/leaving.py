"""A pod that was asked to end: its task goes on until the next checkpoint is there, as long as the grace allows."""

from __future__ import annotations

import json
import os
import subprocess
import sys

TYPE_CHECKING = False

_LOOK_S = 1.0


class Leaving:
    """The wait for one more checkpoint. It looks in a process of its own, which reads the whole of it."""

    def __init__(self, directory: str | None, wait_s: float, at: float) -> None:
        self._directory = directory
        self._until_at = at + (wait_s if directory is not None else 0.0)
        self._look: subprocess.Popen[bytes] | None = None
        self._look_at = at
        self._took_s = 0.0
        self._saved_at: float | None = None
        """When the newest one was saved that was there at the first look, by the clock of the file server."""

    def is_over(self, at: float) -> bool:
        """Return whether the task is to be stopped now: a newer checkpoint reads whole, or no time is left."""
        if at >= self._until_at:
            return True
        if self._look is None and at >= self._look_at:
            words = [sys.executable, "-I", "-S", os.path.abspath(sys.argv[0]), "checkpoints", "verify"]
            self._look_at = at
            self._look = subprocess.Popen([*words, str(self._directory)], stdout=subprocess.PIPE)
        elif self._look is not None and self._look.poll() is not None:
            out, _ = self._look.communicate()
            self._took_s, self._look = at - self._look_at, None
            self._look_at = at + max(_LOOK_S, self._took_s)
            return self._is_newer(out)
        return False

    def close(self) -> None:
        """End a look that is under way."""
        if self._look is not None:
            self._look.kill()
            self._look.wait()

    def _is_newer(self, out: bytes) -> bool:
        try:
            found = json.loads(out).get("checkpoint") or {}
        except ValueError:
            return False
        saved_at = float(found.get("saved_at") or 0.0)
        if self._saved_at is None:
            self._saved_at = saved_at
        return saved_at > self._saved_at
