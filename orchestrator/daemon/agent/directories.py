"""Looks now and then whether the checkpoint directories of the runs here answer: a shared one may hang for minutes.

Each look is a process of its own: whoever touches a directory that hangs hangs with it, and cannot be killed either.
Of one that has not come back, no second is started before its deadline.
"""

from __future__ import annotations

import os
import time

from orchestrator.adapters.host.hostdir import HostFault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from orchestrator.daemon.agent.jobs import Jobs, Result
    from orchestrator.daemon.agent.streams import Loop

EVERY_S = 10.0
"""Between two looks."""

GIVEN_UP_S = 600.0
"""Then another is tried: the first may hang for ever in what is back for all others."""


class Directories:
    """One directory for each run that has been asked for its checkpoints on this host."""

    def __init__(self, loop: Loop, jobs: Jobs, every_s: float = EVERY_S) -> None:
        self._loop = loop
        self._jobs = jobs
        self._every_s = every_s
        self._watched: dict[str, _Watched] = {}

    def watch(self, run: str, directory: str) -> None:
        """From now on; again, it changes nothing."""
        known = self._watched.get(run)
        if known is not None and known.directory == directory:
            return
        self._watched[run] = watched = _Watched(directory)
        self._look(run, watched)

    def forget(self, run: str) -> None:
        """The run is watched no more."""
        self._watched.pop(run, None)

    def report(self) -> dict[str, dict[str, Any]]:
        """By run: `silent_s`, how long a look has been waiting for an answer, and `free_bytes` of its file system."""
        now = time.monotonic()
        return {
            run: {
                "silent_s": 0.0 if watched.asked_at is None else round(now - watched.asked_at, 1),
                "free_bytes": watched.free_bytes,
            }
            for run, watched in self._watched.items()
        }

    def _look(self, run: str, watched: _Watched) -> None:
        if self._watched.get(run) is not watched:
            return
        if watched.asked_at is None:  # else it is the same silence that goes on
            watched.asked_at = time.monotonic()
        directory = watched.directory
        self._jobs.function(
            lambda: look(directory),
            lambda result: self._answered(run, watched, result),
            deadline_s=GIVEN_UP_S,
        )

    def _answered(self, run: str, watched: _Watched, result: Result) -> None:
        from orchestrator.daemon.agent.jobs import answer_of

        if not result.timed_out:
            watched.asked_at = None
            try:
                watched.free_bytes = answer_of(result, "the look")["free_bytes"]
            except HostFault:
                watched.free_bytes = None  # it answers, and what is wrong with it is said by who reads it
        self._loop.after(self._every_s, lambda: self._look(run, watched))


class _Watched:
    __slots__ = ("asked_at", "directory", "free_bytes")

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.asked_at: float | None = None
        self.free_bytes: int | None = None


def look(directory: str) -> dict[str, Any]:
    """Asks the file system itself: what `stat` says may come from a cache."""
    disk = os.statvfs(directory)
    os.listdir(directory)
    return {"free_bytes": disk.f_bavail * disk.f_frsize}
