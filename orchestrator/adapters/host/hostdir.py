"""A host's directory: its paths, its epochs, and atomic writes. Runs on hosts, and blocks on their disk."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any


class HostFault(Exception):
    """Something that a host cannot do. It becomes the error of a reply."""

    def __init__(self, code: str, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint

    def to_json(self) -> dict[str, Any]:
        """Return `{code, message, hint}`."""
        return {"code": self.code, "message": self.message, "hint": self.hint}


def platform() -> str:
    """Return what decides which compiled modules fit: the system, the machine, and the C library."""
    import sys

    try:
        libc = (os.confstr("CS_GNU_LIBC_VERSION") or "").split(" ")[0] or "unknown"
    except (ValueError, OSError):
        libc = "musl"  # musl is the C library that does not know this name
    return f"{sys.platform}-{os.uname().machine}-{libc}"


def run_dir(host_dir: str, run: str) -> str:
    """Return the directory of a run. Raises HostFault for a run id that is not a plain name."""
    return os.path.join(host_dir, "runs", _plain(run))


def generation_dir(host_dir: str, run: str, task: str, generation: int) -> str:
    """Return the directory of one generation of a task. Raises HostFault for an invalid task."""
    type_, _, index = task.partition(":")
    if not (type_.isidentifier() and index.isdecimal()):
        raise HostFault("bad-order", f"not a task: {task!r}")
    return os.path.join(
        run_dir(host_dir, run), "tasks", f"{type_}-{int(index)}", f"gen-{int(generation):06d}"
    )


def generations(host_dir: str, run: str) -> Iterator[tuple[str, int, str]]:
    """Yield (task, generation, directory) for every generation of a run on the host, each task's newest first."""
    tasks_dir = os.path.join(run_dir(host_dir, run), "tasks")
    for name in sorted(_list(tasks_dir)):
        type_, _, index = name.rpartition("-")
        directory = os.path.join(tasks_dir, name)
        for generation in sorted((g for g in _list(directory) if _is_generation(g)), reverse=True):
            yield f"{type_}:{index}", int(generation[4:]), os.path.join(directory, generation)


def accept_epoch(host_dir: str, run: str, epoch: int, *, create: bool) -> None:
    """Remember the highest epoch whose coordinator gave an order for the run.

    This takes a lock, since agents of two coordinators may be here at once. With `create` False, nothing is created
    for a run that the host does not know.

    Raises:
        HostFault: the code is `superseded`; the host has obeyed a higher epoch.
    """
    directory = run_dir(host_dir, run)
    if not os.path.isdir(directory):
        if not create:
            return
        os.makedirs(directory, mode=0o700, exist_ok=True)
    import fcntl

    handle = os.open(os.path.join(directory, "epoch"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        seen = int(os.read(handle, 64) or b"0")
        refuse_superseded(run, seen, epoch)
        if epoch > seen:
            # One write of a fixed width is atomic.
            os.pwrite(handle, b"%020d\n" % epoch, 0)
    finally:
        os.close(handle)


def refuse_superseded(run: str, seen: int, epoch: int) -> None:
    """Raise HostFault `superseded` where `epoch` is lower than the one that the host has seen."""
    if epoch < seen:
        raise HostFault(
            "superseded",
            f"a coordinator of epoch {seen} has taken over {run}; this one has epoch {epoch}",
            "this coordinator should stop",
        )


def epoch(host_dir: str, run: str) -> int:
    """Return the highest epoch whose coordinator gave an order for the run; 0 if unknown."""
    try:
        with open(os.path.join(run_dir(host_dir, run), "epoch")) as file:
            return int(file.read() or "0")
    except (OSError, ValueError):
        return 0


def write_json(path: str, value: dict[str, Any]) -> None:
    """Write a JSON object atomically and with mode 0600, and fsync it."""
    import json

    temporary = f"{path}.{os.getpid()}.tmp"
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(handle, "w", encoding="utf-8", errors="surrogateescape") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    os.rename(temporary, path)


def fault_of(error: OSError) -> HostFault:
    """Return an operating system error as the HostFault for a reply."""
    import errno

    where = f": {error.filename}" if error.filename else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return HostFault("no-space", f"no space left on the device{where}", "free some space on the host")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return HostFault(
            "not-writable",
            f"{error.strerror}{where}",
            "make it writable for the user of the SSH connection",
        )
    return HostFault("os", f"{error.strerror or error}{where}")


def _plain(name: str) -> str:
    """Return `name`. Raises HostFault where it would leave its directory."""
    if not name or name[0] in ".-" or "/" in name or "\0" in name or len(name) > 200:
        raise HostFault("bad-order", f"not a run id: {name!r}")
    return name


def _is_generation(name: str) -> bool:
    return name.startswith("gen-") and name[4:].isdecimal()


def _list(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
