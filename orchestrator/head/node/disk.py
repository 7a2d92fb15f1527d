"""The head node's state disk: whether it is full, the errors about that, and the part reserved for the journal."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator

from orchestrator.core.errors import JournalError, OrchestratorError
from orchestrator.core.words import size

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


def is_full(path: str) -> bool:
    """Return whether the file system of `path` is full; False if unknown."""
    try:
        return os.statvfs(os.path.dirname(path)).f_bavail == 0
    except OSError:
        return False


RESERVE_BYTES = 256 << 20
"""The space that copies of logs, of TensorBoard's files and of checkpoints leave free for the journal."""

_RESERVE_SHARE = 20
"""On a small disk, the reserve is this part of it: one twentieth."""


def why_reserved(path: str) -> str | None:
    """Return why nothing may be copied to `path`: only the journal's reserve is free. None if more is free."""
    while not os.path.isdir(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    try:
        disk = os.statvfs(path)
    except OSError:
        return None
    reserve = min(RESERVE_BYTES, disk.f_blocks * disk.f_frsize // _RESERVE_SHARE)
    free = disk.f_bavail * disk.f_frsize
    if free >= reserve:
        return None
    return f"{size(free)} are free in {path}, and {size(reserve)} are reserved for the journal"


@contextlib.contextmanager
def explained(path: str) -> Iterator[None]:
    """Raise an OrchestratorError with the cause where `path` cannot be written."""
    try:
        yield
    except OSError as e:
        if e.errno in NO_SPACE:
            raise full_error(path) from e
        raise OrchestratorError(f"{path} cannot be written: {e.strerror}") from e


def full_error(path: str) -> JournalError:
    """Return the error for a full state disk, with the way out."""
    return JournalError(
        f"state disk full: {path} cannot be written",
        hint="free some space; training goes on meanwhile, and nothing that was acknowledged is lost",
    )
