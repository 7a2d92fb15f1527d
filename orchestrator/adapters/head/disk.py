"""The head node's state disk: whether it is full, and what is said then."""

from __future__ import annotations

import errno
import os

from orchestrator.core.errors import JournalError

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


def is_full(path: str) -> bool:
    """Return whether the file system of `path` is full; False if unknown."""
    try:
        return os.statvfs(os.path.dirname(path)).f_bavail == 0
    except OSError:
        return False


def full_error(path: str) -> JournalError:
    """Return the error for a full state disk, with the way out."""
    return JournalError(
        f"state disk full: {path} cannot be written",
        hint="free some space; training goes on meanwhile, and nothing that was acknowledged is lost",
    )
