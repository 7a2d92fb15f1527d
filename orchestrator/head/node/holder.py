"""Who holds a state directory's journal, and where its socket is: what the lock's file says.

    <pid>\\n{"boot_id": …, "pid": …, "start_time": …, "socket": …, "inode": …}

The inode is that of the file itself: a copy of a state directory, as from a backup, is nobody's yet. Clients find the
socket by what it says, since their environment may name another directory for sockets than the coordinator's.
"""

from __future__ import annotations

import json
import os
from typing import NamedTuple

from orchestrator.both import process
from orchestrator.head.node.paths import Paths


class Holder(NamedTuple):
    """A living coordinator."""

    pid: int
    socket: str
    since: float
    """Unix time since when it has the journal, or its present socket."""


def write(paths: Paths) -> None:
    """Write that this process holds the journal and listens on `paths.socket`. Raises OSError."""
    me = process.identity(os.getpid())
    who = me.to_json() if me is not None else {}
    with open(paths.lock, "r+b", buffering=0) as file:  # the lock is this file: it is not replaced by another
        said = {**who, "socket": paths.socket, "inode": os.fstat(file.fileno()).st_ino}
        data = f"{os.getpid()}\n{json.dumps(said)}\n".encode()
        file.write(data)
        file.truncate(len(data))


def pid_in(state_dir: str) -> int | None:
    """Return the pid in the lock's file, of a process that may have ended; None if unknown."""
    try:
        with open(os.path.join(state_dir, "coordinator.lock"), encoding="utf-8") as file:
            return int(file.readline())
    except (OSError, ValueError):
        return None


def living(state_dir: str) -> Holder | None:
    """Return the coordinator of this state directory; None if none lives on this machine, as far as the file says."""
    try:
        with open(os.path.join(state_dir, "coordinator.lock"), encoding="utf-8") as file:
            said = json.loads(file.read().partition("\n")[2])
            about = os.fstat(file.fileno())
        if said["inode"] != about.st_ino:
            return None
        who, socket = process.Identity.from_json(said), str(said["socket"])
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return Holder(who.pid, socket, about.st_mtime) if process.alive(who) else None
