"""Whether the checkpoint directory is one and the same on all hosts: written on one, read on the others.

Each host asks for the run's token there. The first makes it; on a directory that is shared all others find that one,
and where it is not, each makes its own.
"""

from __future__ import annotations

import os

from orchestrator.adapters.checkpoints import places

_TOKEN_BYTES = 16


def token(root: str, run: str) -> str:
    """The directory's name for this run. OSError where it cannot be written or read."""
    home = places.own_dir(root)
    os.makedirs(home, exist_ok=True)
    path = os.path.join(home, f"share-{os.path.basename(run)}")
    found = _read(path)
    if found:
        return found
    mine = f"{path}.{os.uname().nodename}.{os.getpid()}.tmp"
    try:
        with open(mine, "w", encoding="ascii") as file:
            file.write(os.urandom(_TOKEN_BYTES).hex())
            file.flush()
            os.fsync(file.fileno())
        _offer(mine, path)
    finally:
        if os.path.exists(mine):
            os.unlink(mine)
    for name in places.names_in(home):  # of runs that have ended
        if name.startswith("share-") and os.path.join(home, name) != path and not name.endswith(".tmp"):
            os.unlink(os.path.join(home, name))
    return _read(path)


def _offer(mine: str, path: str) -> None:
    """Of two that come at once, one is the first, on network file systems too: a link is made or it is not."""
    try:
        os.link(mine, path)
    except FileExistsError:
        return
    except OSError:  # a file system without links
        try:
            os.close(os.open(path + ".made", os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            return
        os.rename(mine, path)


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read(256).strip()
    except FileNotFoundError:
        return ""
