"""A host's directory: its paths, its epochs, and atomic writes. Runs on hosts, and blocks on their disk."""

from __future__ import annotations

import os

from orchestrator.both import durable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any


RECORD = "record.json"
"""In a run's directory: the run as its coordinator last saw it."""

_EPOCH_BYTES = 21


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
    if not is_run_id(run):
        raise HostFault("bad-order", f"not a run id: {run!r}")
    return os.path.join(host_dir, "runs", run)


def task_dir(host_dir: str, run: str, task: str) -> str:
    """Return the directory of a task. Raises HostFault for an invalid task."""
    type_, _, index = task.partition(":")
    if not (type_.isidentifier() and index.isdecimal()):
        raise HostFault("bad-order", f"not a task: {task!r}")
    return os.path.join(run_dir(host_dir, run), "tasks", f"{type_}-{int(index)}")


def generation_dir(host_dir: str, run: str, task: str, generation: int) -> str:
    """Return the directory of one generation of a task. Raises HostFault for an invalid task."""
    return os.path.join(task_dir(host_dir, run, task), f"gen-{int(generation):06d}")


def generations(host_dir: str, run: str) -> Iterator[tuple[str, int, str]]:
    """Yield (task, generation, directory) for every generation of a run on the host, each task's newest first."""
    tasks_dir = os.path.join(run_dir(host_dir, run), "tasks")
    for name in sorted(durable.names(tasks_dir)):
        type_, _, index = name.rpartition("-")
        if not (type_.isidentifier() and index.isdecimal()):
            continue  # somebody else's: it has no place in a report
        directory = os.path.join(tasks_dir, name)
        for generation in sorted(durable.names(directory), reverse=True):
            if generation.startswith("gen-") and generation[4:].isdecimal():
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
        known = _epoch_in(os.read(handle, 64))
        seen = _epoch_of_files(host_dir, run) if known is None else known
        refuse_superseded(run, seen, epoch)
        if known is None or epoch > known:
            # One write of a fixed width is atomic, and the lock is this file: it is not replaced by another.
            os.pwrite(handle, b"%020d\n" % epoch, 0)
            os.ftruncate(handle, _EPOCH_BYTES)
            os.fsync(handle)
            durable.sync_directory(directory)
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
        with open(os.path.join(run_dir(host_dir, run), "epoch"), "rb") as file:
            known = _epoch_in(file.read(64))
    except OSError:
        known = None
    return _epoch_of_files(host_dir, run) if known is None else known


def _epoch_in(content: bytes) -> int | None:
    """Return the epoch that an epoch file holds. None: it is new, or a power cut left it empty or full of NUL bytes."""
    text = content.strip()
    return int(text) if text.isdigit() else None


def _epoch_of_files(host_dir: str, run: str) -> int:
    """Return the highest epoch in the run's other files; 0 if nothing was started or recorded."""
    directories = [directory for _, _, directory in generations(host_dir, run)]
    files = [durable.read_object(run_dir(host_dir, run), RECORD)]
    files += [durable.read_object(directory, "start.json") for directory in directories]
    epochs = [content.get("epoch") for content in files if content]
    return max((epoch for epoch in epochs if isinstance(epoch, int)), default=0)


def limit_of(number: int | None) -> str | None:
    """Return the user limit that was reached where the operating system gives this error; None for other errors."""
    import errno

    return {
        errno.EFBIG: "`ulimit -f` (the size of a file)",
        errno.EMFILE: "`ulimit -n` (open files)",
        errno.EAGAIN: "`ulimit -u` (processes)",
    }.get(number or 0)


def fault_of(error: Exception) -> HostFault:
    """Return an exception as the HostFault of a reply. One that is neither that nor an OSError is a bug in orch."""
    import errno

    if isinstance(error, HostFault):
        return error
    if not isinstance(error, OSError):
        what = f"{type(error).__name__}: {error}"
        return HostFault("internal", what, "this is a bug in orch; report it")
    where = f": {error.filename}" if error.filename else ""
    if (limit := limit_of(error.errno)) is not None:
        return HostFault("limit", f"{error.strerror}{where}", f"raise {limit} of that user on the host")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return HostFault("no-space", f"no space left on the device{where}", "free some space on the host")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return HostFault(
            "not-writable",
            f"{error.strerror}{where}",
            "make it writable for the user of the SSH connection",
        )
    return HostFault("os", f"{error.strerror or error}{where}")


def is_run_id(name: str) -> bool:
    """Return whether a run may have that id."""
    return bool(name) and name[0] not in ".-" and "/" not in name and "\0" not in name and len(name) <= 200
