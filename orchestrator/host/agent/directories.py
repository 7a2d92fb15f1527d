"""Checks regularly whether the runs' checkpoint directories answer. A shared directory may hang for minutes.

Each check is a job in its own process, because a process that touches a hanging directory hangs too, and cannot even
be killed. While a check has not returned, no second one is started before its deadline.
"""

from __future__ import annotations

import os
import time

from orchestrator.both.hostdir import HostFault
from orchestrator.both.value import Value
from orchestrator.checkpoints import claims, share

TYPE_CHECKING = False
if TYPE_CHECKING:
    from orchestrator.host.agent.jobs import Jobs, Result
    from orchestrator.host.agent.streams import Loop
    from orchestrator.protocol.orders.base import Share
    from orchestrator.protocol.reports import DirectorySample

EVERY_S = 10.0
"""The interval between two checks."""

GIVEN_UP_S = 600.0
"""After this, another check is tried: the first may hang for ever although the directory answers again."""


class Directories:
    """The checkpoint directories of the runs for which this host was asked about checkpoints."""

    def __init__(self, loop: Loop, jobs: Jobs, host_dir: str, every_s: float = EVERY_S) -> None:
        self._host_dir = host_dir
        self._loop = loop
        self._jobs = jobs
        self._every_s = every_s
        self._watched: dict[str, _Watched] = {}

    def watch(self, run: str, directory: str, share: Share | None) -> None:
        """Check the directory from now on. A repeated call changes nothing."""
        token = share["token"] if share is not None else ""
        known = self._watched.get(run)
        if known is not None and (known.directory, known.token) == (directory, token):
            return
        self._watched[run] = watched = _Watched(directory, token)
        self._check(run, watched)

    def forget(self, run: str) -> None:
        """Stop checking the directory of a run."""
        self._watched.pop(run, None)

    def report(self) -> dict[str, DirectorySample]:
        """Return, by run, `silent_s` (how long a check has been waiting) and `free_bytes` of the file system."""
        now = time.monotonic()
        return {
            run: {
                "silent_s": 0.0 if watched.asked_at is None else round(now - watched.asked_at, 1),
                "free_bytes": watched.free_bytes,
                "missing": watched.is_missing,
            }
            for run, watched in self._watched.items()
        }

    def _check(self, run: str, watched: _Watched) -> None:
        if self._watched.get(run) is not watched:
            return
        directory, host_dir, token = watched.directory, self._host_dir, watched.token
        try:
            self._jobs.function(
                lambda: probe(directory, run, host_dir, token),
                lambda result: self._answered(run, watched, result),
                deadline_s=GIVEN_UP_S,
            )
        except OSError:  # the host has no process or descriptor left, which says nothing about the directory
            self._check_later(run, watched)
            return
        if watched.asked_at is None:  # otherwise the same silence continues
            watched.asked_at = time.monotonic()

    def _check_later(self, run: str, watched: _Watched) -> None:
        self._loop.after(self._every_s, lambda: self._check(run, watched))

    def _answered(self, run: str, watched: _Watched, result: Result) -> None:
        from orchestrator.host.agent.jobs import answer_of

        if not result.timed_out:
            watched.asked_at = None
            try:
                answer = answer_of(result, "the check of the directory")
                watched.free_bytes, watched.is_missing = answer["free_bytes"], answer["missing"]
            except HostFault:
                watched.free_bytes = None  # it answers with an error, which the next reader will report
        self._check_later(run, watched)


class _Watched(Value):
    directory: str
    token: str
    is_missing: bool = False
    asked_at: float | None = None
    free_bytes: int | None = None


def probe(directory: str, run: str, host_dir: str, token: str) -> dict[str, int | bool | None]:
    """Access the directory, and return its free bytes, and whether it lacks the run's token.

    Its file system itself must answer: `stat` may be cached. Nothing is written to a directory without the token.
    """
    if token and not share.is_there(directory, run, token):
        return {"free_bytes": None, "missing": True}
    disk = os.statvfs(directory)
    os.listdir(directory)
    import contextlib

    with contextlib.suppress(OSError):  # the disk may be full, which is reported all the same
        claims.touch_stamp(directory, run, host_dir)
    return {"free_bytes": disk.f_bavail * disk.f_frsize, "missing": False}
