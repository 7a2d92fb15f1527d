"""The lock that allows a journal a single coordinator, and how a successor acquires it.

The successor asks the old coordinator to end; the command line that started the successor does not. By then the
successor is a separate process that has loaded everything and waits for the lock. So the old one never ends without a
successor, whatever happens to the command line.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable
from typing import TextIO

from orchestrator.core.errors import CoordinatorUnreachable, Refused, WaitTimedOut
from orchestrator.core.words import duration
from orchestrator.head.api.client import Client
from orchestrator.head.node import holder
from orchestrator.head.node.paths import Paths

PATIENCE_S = 600.0
"""How long a successor waits for the old coordinator, which may hang on a disk."""

_POLL_EVERY_S = 0.02

_LOCK_TRIES = 3
"""How often the lock is tried, since a command line that checks for a coordinator holds it for a moment."""


def take_lock(paths: Paths, *, pause: Callable[[float], None] = time.sleep) -> TextIO:
    """Take the lock, which is held while the returned file is open. Raises Refused if another process has it."""
    file = open(os.open(paths.lock, os.O_RDWR | os.O_CREAT, 0o600), "r+", encoding="utf-8")  # noqa: SIM115
    if not any(_locked(file, pause) for _ in range(_LOCK_TRIES)):
        file.close()
        pid = holder.pid_in(paths.state_dir) or "unknown"
        raise Refused(
            f"a coordinator has this journal already: pid {pid}, {paths.state_dir}",
            hint="`orch coordinator status` shows it, `orch coordinator stop` ends it (tasks go on)",
        )
    with contextlib.suppress(OSError):  # a full disk is reported elsewhere
        holder.write(paths)
    return file


def take_over(
    paths: Paths,
    pid: int,
    *,
    now: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> TextIO:
    """Ask the coordinator with this pid to end, and take its lock.

    Raises:
        Refused: another coordinator was faster.
        WaitTimedOut: the old one still has the journal after `PATIENCE_S`.
    """
    # A lost answer does not matter: if the old coordinator got the request, it releases the lock.
    with contextlib.suppress(CoordinatorUnreachable):
        if holder.pid_in(paths.state_dir) in (pid, None):
            Client(paths.socket, state_dir=paths.state_dir).post("/v1/stop")
    deadline = now() + PATIENCE_S
    while True:
        try:
            return take_lock(paths, pause=pause)
        except Refused:
            if holder.pid_in(paths.state_dir) not in (pid, None):
                raise
            if now() >= deadline:
                raise WaitTimedOut(
                    f"the coordinator (pid {pid}) was asked to end, and has not let go of its journal "
                    f"in {duration(PATIENCE_S)}",
                    hint=f"it may be killed (kill -9 {pid}): the tasks go on",
                ) from None


def _locked(file: TextIO, pause: Callable[[float], None]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pause(_POLL_EVERY_S)
        return False
    return True
