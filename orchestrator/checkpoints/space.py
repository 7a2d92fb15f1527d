"""A disk that is full: how much is free and how much is needed, so that whoever waits for room knows for how much."""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import contextmanager

from orchestrator.checkpoints.places import SeedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_FULL = (errno.ENOSPC, errno.EDQUOT)


class Need:
    """What is about to be written."""

    def __init__(self) -> None:
        self.bytes = 0


@contextmanager
def room_for(building: str) -> Iterator[Need]:
    """Build something in a directory that is renamed in the end. Where it was not, remove it: the disk may be full.

    Raises:
        SeedError: `no-space`, where it failed of that.
    """
    need = Need()
    try:
        yield need
    except OSError as e:
        shutil.rmtree(building, ignore_errors=True)
        if is_full(e):
            raise no_space(e, os.path.dirname(building), need.bytes) from e
        raise
    finally:
        shutil.rmtree(building, ignore_errors=True)


def is_full(error: OSError) -> bool:
    """Return whether the disk, or the user's part of it, is full."""
    return error.errno in _FULL


def no_space(error: OSError, directory: str, needed_bytes: int | None = None) -> SeedError:
    """Return the refusal, with the free and the needed bytes."""
    needed = f", {needed_bytes} bytes are needed" if needed_bytes else ""
    quota = "; the user's quota is used up" if error.errno == errno.EDQUOT else ""
    return SeedError(
        "no-space",
        f"no space left for checkpoints in {directory}: {free_bytes(directory)} bytes are free{needed}{quota}",
        "free some space there; what was verified is untouched, and `orch ckpt ls` shows it",
    )


def free_bytes(path: str) -> int:
    """Return what the user may still write where `path` is, or would be; 0 where that is not known."""
    while not os.path.exists(path) and os.path.dirname(path) != path:
        path = os.path.dirname(path)
    try:
        found = os.statvfs(path)
    except OSError:
        return 0
    return found.f_bavail * found.f_frsize
