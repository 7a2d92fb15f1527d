"""Where a keeper listens: a socket in a directory of the user's own, named after the allocation and the host."""

from __future__ import annotations

import os
import socket
import stat

from orchestrator.both import private_socket

LEAVING = ".leaving"


class NoPlace(OSError):
    """The directory cannot be made, or is not ours alone."""


def directory() -> str:
    """Return the directory of the sockets, and make it. Raises NoPlace where it is not ours alone."""
    path = os.path.join(os.environ.get("TMPDIR") or "/tmp", f"orch-keeper-{os.getuid()}")
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        info = os.lstat(path)
    except OSError as e:
        raise NoPlace(f"{path} cannot be made: {e.strerror}") from e
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid() or info.st_mode & 0o077:
        raise NoPlace(f"{path} is not a directory that only this user can enter")
    return path


def path_of(allocation: str, ending: str = "") -> str:
    """Return the path of this host's socket, or with `LEAVING` where it is written down that this host leaves.

    Tests have several hosts over one file system: the host is in the name.

    Raises:
        NoPlace: the directory cannot be used.
        ValueError: the allocation's name cannot be a part of a file name.
    """
    if not allocation or not all(c.isalnum() or c in ".-_" for c in allocation):
        raise ValueError(f"not the name of an allocation: {allocation!r}")
    return os.path.join(directory(), f"{allocation}{ending}@{os.uname().nodename.partition('.')[0]}")


def is_ours(connection: socket.socket) -> bool:
    """Return whether the other end belongs to our user."""
    return private_socket.peer(connection)[1] == os.getuid()
