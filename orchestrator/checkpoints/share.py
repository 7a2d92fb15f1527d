"""The test whether all hosts share one checkpoint directory: one host writes a token, the others read it.

Each host asks for the run's token in the directory, and the first one makes it. On a shared directory the others find
that token; otherwise each host makes its own, and the tokens differ. Later each host looks whether the token is there:
where the share is not mounted, it is not.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress

from orchestrator.both.hostdir import HostFault
from orchestrator.both.within import Tree
from orchestrator.checkpoints.places import OWN, opened

SHARE_MISSING = "share-missing"
"""The code of the fault that the checkpoint directory of a run is not there."""

_TOKEN_BYTES = 16

_KEPT_S = 30 * 24 * 3600.0
"""How long a token stays after it was last looked at."""


def token(root: str, run: str) -> str:
    """Return the run's token in this directory; make it if there is none.

    Raises:
        OSError: the directory cannot be written or read.
    """
    path = f"{OWN}/share-{os.path.basename(run)}"
    with opened(root) as tree:
        tree.make(OWN)
        existing = _read(tree, path)
        if existing:
            return existing
        mine = f"{path}.{os.uname().nodename}.{os.getpid()}.tmp"
        try:
            # Other hosts' users may read it.
            tree.remove(mine)
            tree.create(mine, os.urandom(_TOKEN_BYTES).hex().encode(), mode=0o666, durable=True)
            _offer(tree, mine, path)
        finally:
            tree.remove(mine)
        _remove_old(tree)
        return _read(tree, path)


def withdraw(root: str, run: str, *, made: bool) -> None:
    """Undo `token`, and where it made the directory, remove that too. What somebody else has put there stays."""
    top = os.path.basename(root)
    with suppress(OSError), Tree(os.path.dirname(root)) as above:
        above.remove(f"{top}/{OWN}/share-{os.path.basename(run)}")
        for path in (f"{top}/{OWN}", top)[: 1 + made]:
            above.remove_empty(path)


def is_there(root: str, run: str, token: str) -> bool:
    """Return whether a directory has this token of the run. Nothing is made, and a token that is there is kept.

    Raises:
        OSError: the directory cannot be read. One that does not exist has no token.
    """
    path = f"{OWN}/share-{os.path.basename(run)}"
    try:
        with Tree(root) as tree:
            found = _read(tree, path)
            if found == token:
                with suppress(OSError):  # of another user
                    tree.touch(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return found == token


def missing(root: str) -> HostFault:
    """Return the fault that the share is not there."""
    return HostFault(
        SHARE_MISSING,
        f"the checkpoint directory {root} on this host is not the one in which the run saves: its share is not mounted",
        "mount it; the host is asked again, and the run goes on by itself",
    )


def _remove_old(tree: Tree) -> None:
    """Remove the tokens of runs that began long ago.

    One that is taken over is asked for its own until its coordinator knows of that, and other hosts do this too.
    """
    for name in tree.names(OWN):
        path = f"{OWN}/{name}"
        try:
            if name.startswith("share-") and time.time() - tree.stat(path).st_mtime > _KEPT_S:
                tree.remove(path)
        except FileNotFoundError:
            continue


def _offer(tree: Tree, mine: str, path: str) -> None:
    """Move the token into place unless another host was first. Making a link is atomic on network file systems too."""
    try:
        tree.link(mine, tree, path)
    except FileExistsError:
        return
    except OSError:  # a file system without links
        try:
            tree.create(path + ".made", b"")
        except FileExistsError:
            return
        tree.rename(mine, path, durable=False)


def _read(tree: Tree, path: str) -> str:
    try:
        with tree.reading(path) as file:
            return file.read(256).decode("ascii", "replace").strip()
    except FileNotFoundError:
        return ""
