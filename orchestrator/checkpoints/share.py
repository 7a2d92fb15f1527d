"""The test whether all hosts share one checkpoint directory: one host writes a token, the others read it.

Each host asks for the run's token in the directory, and the first one makes it. On a shared directory the others find
that token; otherwise each host makes its own, and the tokens differ.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress

from orchestrator.both import durable
from orchestrator.checkpoints import places

_TOKEN_BYTES = 16

_KEPT_S = 24 * 3600.0
"""How long a token stays. All hosts of a run ask for it within minutes; then it is only a file of 32 bytes."""


def token(root: str, run: str) -> str:
    """Return the run's token in this directory; make it if there is none.

    Raises:
        OSError: the directory cannot be written or read.
    """
    home = places.own_dir(root)
    os.makedirs(home, exist_ok=True)
    path = os.path.join(home, f"share-{os.path.basename(run)}")
    existing = _read(path)
    if existing:
        return existing
    mine = f"{path}.{os.uname().nodename}.{os.getpid()}.tmp"
    try:
        # Other hosts' users may read it.
        durable.fill(mine, os.urandom(_TOKEN_BYTES).hex().encode(), mode=0o666)
        _offer(mine, path)
    finally:
        if os.path.exists(mine):
            os.unlink(mine)
    _remove_old(home)
    return _read(path)


def _remove_old(home: str) -> None:
    """Remove the tokens of runs that began long ago.

    One that is taken over is asked for its own until its coordinator knows of that, and other hosts do this too.
    """
    for name in places.names_in(home):
        path = os.path.join(home, name)
        with suppress(FileNotFoundError):
            if name.startswith("share-") and time.time() - os.stat(path).st_mtime > _KEPT_S:
                os.unlink(path)


def _offer(mine: str, path: str) -> None:
    """Move the token into place unless another host was first. Making a link is atomic on network file systems too."""
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
