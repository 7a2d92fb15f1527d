"""TensorBoard's files on a host, which a run's tasks write into ORCH_LOG_DIR. Runs on hosts.

These files only grow, so whoever has the first bytes of one asks for the rest.
"""

from __future__ import annotations

import os
import stat

from orchestrator.adapters.host.hostdir import HostFault, generation_dir, generations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MARK = "tfevents"
_PLUGINS = "plugins" + os.sep
"""The directory of profiles and the like. Other files that a script writes are not TensorBoard's."""

FILES_MAX = 5000
"""More files than a training writes. The bound keeps a listing within one frame."""


def log_dir(generation_dir: str) -> str:
    """Return what ORCH_LOG_DIR is for the task of that generation."""
    return os.path.join(generation_dir, "logs")


def listing(host_dir: str, run: str) -> dict[str, Any]:
    """List the files of all generations on the host, and count those beyond FILES_MAX.

    Returns:
        `{"files": [{"task", "generation", "path", "bytes"}], "left_out": n}`.
    """
    import re

    from orchestrator.protocol.limits import CONTROLS

    controls = re.compile(CONTROLS).search
    files: list[dict[str, Any]] = []
    left_out = 0
    for task, generation, directory in sorted(generations(host_dir, run)):
        top = log_dir(directory)
        for where, below, names in os.walk(top):
            below.sort()
            for name in sorted(names):
                path = os.path.relpath(os.path.join(where, name), top)
                size = _size(os.path.join(where, name))
                if size is None or not (_MARK in name or _PLUGINS in path):
                    continue
                # The head could neither show such a name nor send it back.
                if len(files) < FILES_MAX and not controls(path):
                    files.append({"task": task, "generation": generation, "path": path, "bytes": size})
                else:
                    left_out += 1
    return {"files": files, "left_out": left_out}


def _size(path: str) -> int | None:
    """Return the size of a regular file; None of anything else, since a link could lead anywhere."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def read(
    host_dir: str, run: str, task: str, generation: int, path: str, offset: int, bytes_max: int
) -> bytes:
    """Read part of one file, from byte `offset`. Raises HostFault for a path that leaves the log directory."""
    top = os.path.realpath(log_dir(generation_dir(host_dir, run, task, generation)))
    whole = os.path.join(top, path)
    if "\0" in path or os.path.realpath(whole) != os.path.normpath(whole) or not _is_below(whole, top):
        raise HostFault("bad-order", f"not a file of the run's logs: {path!r}")
    with open(os.open(whole, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        file.seek(offset)
        return file.read(bytes_max)


def _is_below(path: str, top: str) -> bool:
    return os.path.normpath(path).startswith(top + os.sep)
