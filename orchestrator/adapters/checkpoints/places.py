"""Where what is, under a checkpoint directory; and the lock of those who change it.

gen-000012/            what one generation of the training saves; its marker says what it was given, and whose it is
gen-000012.tmp/        being made
.orch/pinned/          copies that are never removed, each a small generation of its own: gen-000005.step-50/
.orch/safe/            snapshots that travel, where hosts share no directory (`safe`)
.orch/aside.json       what a person went back from (`lineage`)
.orch/verified.json    what was read to its last byte, and when (`records`)
.orch/share-<run>      the same on every host, or it is not one directory (`share`)
"""

from __future__ import annotations

import errno
import json
import os
import time
from contextlib import contextmanager

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

OWN = ".orch"
MARKER = ".orch-seed.json"
PREFIX = "gen-"

LOCK_S = 300.0
"""A large checkpoint is copied in less; then whoever holds the lock is taken to hang."""

_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
"""Of file systems without locks. Every change ends in one rename, so that two at once waste work and no more."""


class SeedError(Exception):
    """The checkpoint directory cannot be changed as was asked; `code`, one sentence, and the way out."""

    def __init__(self, code: str, message: str, hint: str) -> None:
        super().__init__(message)
        self.code = code
        self.hint = hint


def directory_of(root: str, generation: int) -> str:
    return os.path.join(root, f"{PREFIX}{generation:06d}")


def own_dir(root: str) -> str:
    """What is ours and no generation's."""
    return os.path.join(root, OWN)


def generations(root: str) -> list[int]:
    """The generations that have a directory under `root`, newest first."""
    found = []
    for name in names_in(root):
        digits = name.removeprefix(PREFIX)
        path = os.path.join(root, name)
        if name != digits and digits.isdecimal() and os.path.isdir(path) and not os.path.islink(path):
            found.append(int(digits))
    return sorted(found, reverse=True)


def pinned(root: str) -> list[tuple[int, str]]:
    """(generation, directory) of the copies that are kept, newest first."""
    home = os.path.join(own_dir(root), "pinned")
    found = []
    for name in names_in(home):
        digits = name.removeprefix(PREFIX).partition(".")[0]
        if name.startswith(PREFIX) and digits.isdecimal() and not name.endswith(".tmp"):
            found.append((int(digits), os.path.join(home, name)))
    return sorted(found, reverse=True)


def safe(root: str) -> list[tuple[int, str]]:
    """(generation, directory) of the snapshots that travel between hosts that share no directory, newest first."""
    home = os.path.join(own_dir(root), "safe")
    found = []
    for name in names_in(home):
        marker = None if name.endswith(".tmp") else marker_of(os.path.join(home, name))
        if marker is not None and isinstance(marker.get("generation"), int):
            found.append((int(marker["generation"]), os.path.join(home, name)))
    return sorted(found, reverse=True)


def names_in(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except FileNotFoundError:  # any other trouble is no empty directory
        return []


def marker_of(directory: str) -> dict[str, Any] | None:
    """What a generation was given; None of a directory that is not ours, or not complete."""
    return read_json(os.path.join(directory, MARKER))


def read_json(path: str) -> dict[str, Any] | None:
    """None where it is not there, or no JSON object."""
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def write_json(path: str, value: dict[str, Any]) -> None:
    """Whole or not at all, and on disk."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    temporary = f"{path}.{os.uname().nodename}.{os.getpid()}.tmp"
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(value, file)
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, path)
    except OSError:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise


@contextmanager
def locked(root: str, wait_s: float = LOCK_S) -> Iterator[None]:
    """Nobody else changes the directory meanwhile: two agents of one host, or of two, may be asked the same.

    Raises:
        SeedError: somebody else has held it for `wait_s`.
    """
    import fcntl

    os.makedirs(own_dir(root), exist_ok=True)
    path = os.path.join(own_dir(root), "lock")
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    give_up_at = time.monotonic() + wait_s
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as e:
                if time.monotonic() >= give_up_at:
                    raise SeedError(
                        "locked",
                        f"another process has been at work in {root} for {wait_s:.0f} s",
                        f"see who holds {path} (`fuser {path}`), on each host",
                    ) from e
                time.sleep(0.05)
            except OSError as e:
                if e.errno not in _NO_LOCKS:
                    raise
                break
        yield
    finally:
        os.close(handle)
