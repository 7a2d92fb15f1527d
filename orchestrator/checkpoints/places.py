"""The layout of a checkpoint directory, and the lock that whoever changes it must hold.

gen-000012/            what one generation saves; its marker says what the generation was given, and whose it is
gen-000012.tmp/        a generation's directory that is being made
.orch/pinned/          pinned copies, which only `unpin` removes; each is a small generation: gen-000005.step-50/
.orch/safe/            snapshots that are transferred where hosts share no directory (`safe`)
.orch/removed/         what is being removed: it is renamed to here first, so it leaves its place in one step
.orch/aside.json       what a person rolled back (`lineage`)
.orch/verified.json    which checkpoints were read to their last byte, and when (`records`)
.orch/share-<run>      a token: hosts share the directory if all of them read the same one (`share`)
"""

from __future__ import annotations

import errno
import os
import shutil
import time
from contextlib import contextmanager

from orchestrator.both import durable, newest
from orchestrator.both.hostdir import HostFault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any


OWN = ".orch"
MARKER = newest.MARKER
PREFIX = "gen-"

LOCK_S = 300.0
"""How long to wait for the lock. Copying a large checkpoint takes less, so its holder is then assumed to hang."""

_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
"""The errors of file systems without locks. There, two changes at once only waste work: each ends in one rename."""


class SeedError(HostFault):
    """The checkpoint directory cannot be changed as requested. It carries a code, one sentence, and a hint."""


def directory_of(root: str, generation: int) -> str:
    return os.path.join(root, f"{PREFIX}{generation:06d}")


def own_dir(root: str) -> str:
    """Return the directory of our own files, which belong to no generation."""
    return os.path.join(root, OWN)


def generations(root: str) -> list[int]:
    """Return the generations that have a directory under `root`, newest first."""
    numbers = []
    for name in names_in(root):
        digits = name.removeprefix(PREFIX)
        path = os.path.join(root, name)
        if name != digits and digits.isdecimal() and os.path.isdir(path) and not os.path.islink(path):
            numbers.append(int(digits))
    return sorted(numbers, reverse=True)


def pinned(root: str) -> list[tuple[int, str]]:
    """Return (generation, directory) of each pinned copy, newest first."""
    home = os.path.join(own_dir(root), "pinned")
    pins = []
    for name in names_in(home):
        digits = name.removeprefix(PREFIX).partition(".")[0]
        if name.startswith(PREFIX) and digits.isdecimal() and not name.endswith(".tmp"):
            pins.append((int(digits), os.path.join(home, name)))
    return _newest_first(pins)


def safe(root: str) -> list[tuple[int, str]]:
    """Return (generation, directory) of each snapshot, newest first. Hosts that share no directory exchange them."""
    home = os.path.join(own_dir(root), "safe")
    snapshots = []
    for name in names_in(home):
        marker = None if name.endswith(".tmp") else marker_of(os.path.join(home, name))
        if marker is not None and isinstance(marker.get("generation"), int):
            snapshots.append((int(marker["generation"]), os.path.join(home, name)))
    return _newest_first(snapshots)


def _newest_first(copies: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """Sort copies of ours, whose markers tell the step."""

    def key(copy: tuple[int, str]) -> tuple[int, int, float]:
        return newest.across({**(marker_of(copy[1]) or {}), "generation": copy[0]})

    return sorted(copies, key=key, reverse=True)


def names_in(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except FileNotFoundError:  # any other error must not look like an empty directory
        return []


def remove(root: str, directory: str) -> None:
    """Remove a generation, a pin or a snapshot: its name vanishes in one step, so nobody sees half of it.

    The caller holds the lock.
    """
    heap = os.path.join(own_dir(root), "removed")
    try:
        os.makedirs(heap, exist_ok=True)
        target = os.path.join(heap, f"{os.path.basename(directory)}.{os.urandom(4).hex()}")
        # After a power cut it is there whole, and is removed again.
        durable.place(directory, target, durable=False)
    except OSError:  # a disk that is full has no room for one more name
        shutil.rmtree(directory, ignore_errors=True)
    for name in names_in(heap):  # what a killed process has left here is removed too
        shutil.rmtree(os.path.join(heap, name), ignore_errors=True)


def marker_of(directory: str) -> dict[str, Any] | None:
    """Return what a generation was given. None: the directory is not ours, or not complete."""
    return durable.read_object(directory, MARKER)


def write_json(path: str, value: dict[str, Any]) -> None:
    """Write a JSON object into the directory, which other users may share. Raises OSError if the disk refuses."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    durable.write_json(path, value, mode=0o666)


@contextmanager
def locked(root: str, wait_s: float = LOCK_S) -> Iterator[None]:
    """Hold the directory's lock. Two agents, on one host or on two, may be given the same order.

    Raises:
        SeedError: another process has held the lock for `wait_s`.
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


# A disk that is full: how much is free and how much is needed, so that whoever waits for room knows for how
# much

_FULL = (errno.ENOSPC, errno.EDQUOT)


class Need:
    """What is about to be written."""

    def __init__(self) -> None:
        self.bytes = 0


@contextmanager
def room_for(building: str) -> Iterator[Need]:
    """Build something in a directory that is renamed at the end; remove it if it was not renamed.

    Raises:
        SeedError: `no-space`, where the disk was full.
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
    """Return what the user may still write where `path` is, or would be; 0 if unknown."""
    while not os.path.exists(path) and os.path.dirname(path) != path:
        path = os.path.dirname(path)
    try:
        disk = os.statvfs(path)
    except OSError:
        return 0
    return disk.f_bavail * disk.f_frsize
