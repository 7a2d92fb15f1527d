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
import time
from contextlib import contextmanager, suppress

from orchestrator.both import newest
from orchestrator.both.hostdir import HostFault
from orchestrator.both.within import Tree, give_to, who_else_writes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any


OWN = ".orch"
REMOVED = f"{OWN}/removed"
PINNED = f"{OWN}/pinned"
SAFE = f"{OWN}/safe"
MARKER = newest.MARKER
PREFIX = "gen-"

SHARED_HINT = (
    "`chmod go-w` it, `chown` it if it is not yours, and `setfacl -k` it if it has a default access list; or name the "
    "one group that shares it: `checkpoint: {group: NAME}`, after `chgrp NAME` and `chmod 2770`; a directory above it "
    "may have `chmod +t` instead"
)

LOCK_S = 300.0
"""How long to wait for the lock. Copying a large checkpoint takes less, so its holder is then assumed to hang."""

_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
"""The errors of file systems without locks. There, two changes at once only waste work: each ends in one rename."""


class SeedError(HostFault):
    """The checkpoint directory cannot be changed as requested. It carries a code, one sentence, and a hint."""


def directory_of(root: str, generation: int) -> str:
    return os.path.join(root, f"{PREFIX}{generation:06d}")


def opened(root: str, group: str | None = None) -> Tree:
    """Open a checkpoint directory, or a task's own. Where it is missing, make it for us, or for us and a group."""
    try:
        os.makedirs(root, mode=0o700)
    except FileExistsError:
        return Tree(root)
    tree = Tree(root)
    if group is not None:
        give_to(tree, group)
    return tree


def others_in(root: str, group: str | None) -> str | None:
    """Return who else may write into a checkpoint directory; None: nobody. Only then it is made where it is missing."""
    others = who_else_writes(root, group)
    if others is None:
        opened(root, group).close()
        others = who_else_writes(root, group)  # somebody else may have made it meanwhile
    return others


def admit(root: str, group: str | None) -> None:
    """Check that only we, root and the group that the spec names may write into the directory. Make it if missing.

    Raises:
        SeedError: others may, and so could decide what is resumed from.
    """
    others = others_in(root, group)
    if others is not None:
        raise SeedError("checkpoint-shared", f"{others} may write into {root}", SHARED_HINT)
    # What we make there is the group's too, or else written by nobody but us
    os.umask(0o007 if group is not None else os.umask(0o022) | 0o022)


def highest(root: str) -> int:
    """Return the newest generation that has a directory under `root`; 0 if none has."""
    try:
        with Tree(root) as tree:
            return max(generations(tree), default=0)
    except FileNotFoundError:
        return 0


def generations(tree: Tree) -> list[int]:
    """Return the generations that have a directory, newest first."""
    numbers = []
    for name in tree.folders():
        digits = name.removeprefix(PREFIX)
        if name != digits and digits.isdecimal():
            numbers.append(int(digits))
    return sorted(numbers, reverse=True)


def pinned(tree: Tree) -> list[tuple[int, str]]:
    """Return (generation, directory) of each pinned copy, newest first."""
    pins = []
    for name in tree.folders(PINNED):
        digits = name.removeprefix(PREFIX).partition(".")[0]
        if name.startswith(PREFIX) and digits.isdecimal() and not name.endswith(".tmp"):
            pins.append((int(digits), os.path.join(tree.path, PINNED, name)))
    return _newest_first(tree, pins)


def safe(tree: Tree) -> list[tuple[int, str]]:
    """Return (generation, directory) of each snapshot, newest first. Hosts that share no directory exchange them."""
    snapshots = []
    for name in tree.folders(SAFE):
        marker = None if name.endswith(".tmp") else marker_of(tree, f"{SAFE}/{name}")
        if marker is not None and isinstance(marker.get("generation"), int):
            snapshots.append((int(marker["generation"]), os.path.join(tree.path, SAFE, name)))
    return _newest_first(tree, snapshots)


def _newest_first(tree: Tree, copies: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """Sort copies of ours, whose markers tell the step."""

    def key(copy: tuple[int, str]) -> tuple[int, int, float]:
        return newest.across({**(marker_of(tree, copy[1]) or {}), "generation": copy[0]})

    return sorted(copies, key=key, reverse=True)


def remove(tree: Tree, directory: str) -> None:
    """Remove a generation, a pin or a snapshot: its name vanishes in one step, so nobody sees half of it.

    The caller holds the lock.
    """
    try:
        tree.make(REMOVED)
        target = f"{REMOVED}/{os.path.basename(directory)}.{os.urandom(4).hex()}"
        # After a power cut it is there whole, and is removed again.
        tree.rename(directory, target, durable=False)
    except OSError:  # a disk that is full has no room for one more name
        with suppress(OSError):
            tree.remove(directory)
    with suppress(OSError):
        for name in tree.names(REMOVED):  # what a killed process has left here is removed too
            with suppress(OSError):
                tree.remove(f"{REMOVED}/{name}")


def marker_of(tree: Tree, directory: str) -> dict[str, Any] | None:
    """Return what a generation was given. None: the directory is not ours, or not complete."""
    return tree.read_object(os.path.join(directory, MARKER))


@contextmanager
def locked(root: str, wait_s: float = LOCK_S) -> Iterator[Tree]:
    """Open the directory, and hold its lock. Two agents, on one host or on two, may be given the same order.

    Raises:
        SeedError: another process has held the lock for `wait_s`.
    """
    with opened(root) as tree, _lock(tree, wait_s):
        yield tree


@contextmanager
def _lock(tree: Tree, wait_s: float) -> Iterator[None]:
    import fcntl

    path = f"{OWN}/lock"
    tree.make(OWN)
    is_shared = tree.stat().st_mode & 0o020
    handle = tree.opened(path, os.O_RDWR | os.O_CREAT, 0o660 if is_shared else 0o600)
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
                        f"another process has been at work in {tree.path} for {wait_s:.0f} s",
                        f"see who holds {path} there (`fuser {tree.path}/{path}`), on each host",
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
    """What is about to be written, and the directory for it: it stays the same one, whatever takes its name."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.bytes = 0


@contextmanager
def room_for(tree: Tree, path: str) -> Iterator[Need]:
    """Build something in a directory that is renamed at the end; remove it if it was not renamed.

    Raises:
        SeedError: `no-space`, where the disk was full.
    """
    needed = 0
    try:
        tree.make(path)
        with tree.below(path) as building:
            need = Need(building)
            try:
                yield need
            finally:
                needed = need.bytes
    except OSError as e:
        with suppress(OSError):
            tree.remove(path)
        if is_full(e):
            raise no_space(e, os.path.dirname(os.path.join(tree.path, path)), needed) from e
        raise
    finally:
        with suppress(OSError):
            tree.remove(path)


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
