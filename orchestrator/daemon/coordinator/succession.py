"""One coordinator for one journal: the lock that says so, and how the next takes it from the one before.

The successor asks the old one to end, and not the command line that wanted it: by then it is a process of its own
that has loaded all that it is made of and waits for the lock. So there is no moment in which the old one is to end
and nobody is there to follow, whatever becomes of the command line.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable
from typing import TextIO

from orchestrator.adapters.head.client import Client
from orchestrator.adapters.head.paths import Paths
from orchestrator.core.errors import CoordinatorUnreachable, Refused, WaitTimedOut

PATIENCE_S = 600.0
"""How long a successor waits for the old one, which has been asked and may hang in a disk."""

_LOOK_EVERY_S = 0.02

_LOCK_TRIES = 3
"""A command line that wonders whether a coordinator lives holds the lock for a moment, to see whether it can."""


def take_lock(paths: Paths, *, pause: Callable[[float], None] = time.sleep) -> TextIO:
    """Held as long as the file is open, by the kernel: it cannot be left behind. Refused where another holds it."""
    file = open(os.open(paths.lock, os.O_RDWR | os.O_CREAT, 0o600), "r+", encoding="utf-8")  # noqa: SIM115
    if not any(_locked(file, pause) for _ in range(_LOCK_TRIES)):
        pid = file.read().strip() or "unknown"
        file.close()
        raise Refused(
            f"a coordinator has this journal already: pid {pid}, {paths.state_dir}",
            hint="`orch coordinator status` shows it, `orch coordinator stop` ends it (tasks go on)",
        )
    with contextlib.suppress(OSError):  # for people only; where the disk is full the journal says so
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
    return file


def take_over(
    paths: Paths,
    pid: int,
    *,
    now: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> TextIO:
    """Ask the coordinator of that pid to end, and take its lock when it has let go.

    Refused where yet another has come first. WaitTimedOut after `PATIENCE_S`: the old one still has the journal.
    """
    # What counts is that it lets go; where the answer was lost it may do so all the same.
    with contextlib.suppress(CoordinatorUnreachable):
        if _assignee(paths) in (pid, None):
            Client(paths.socket).post("/v1/stop")
    deadline = now() + PATIENCE_S
    while True:
        try:
            return take_lock(paths, pause=pause)
        except Refused:
            if _assignee(paths) not in (pid, None):
                raise
            if now() >= deadline:
                raise WaitTimedOut(
                    f"the coordinator (pid {pid}) was asked to end, and has not let go of its journal "
                    f"in {PATIENCE_S:g} s",
                    hint=f"it may be killed (kill -9 {pid}): the tasks go on",
                ) from None


def _locked(file: TextIO, pause: Callable[[float], None]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pause(_LOOK_EVERY_S)
        return False
    return True


def _assignee(paths: Paths) -> int | None:
    """Who wrote its pid into the lock last; None where that cannot be told."""
    try:
        with open(paths.lock, encoding="utf-8") as file:
            return int(file.read())
    except (OSError, ValueError):
        return None
