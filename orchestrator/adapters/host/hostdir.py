"""A host's directory: where what is, and how a file gets there whole. Runs on hosts; blocks on their disk."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any


class HostFault(Exception):
    """What a host cannot do, as the error of a reply."""

    def __init__(self, code: str, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint

    def to_json(self) -> dict[str, Any]:
        """`{code, message, hint}`"""
        return {"code": self.code, "message": self.message, "hint": self.hint}


def platform() -> str:
    """Which compiled modules fit: the system, the machine, and the family of the C library."""
    import sys

    try:
        libc = (os.confstr("CS_GNU_LIBC_VERSION") or "").split(" ")[0] or "unknown"
    except (ValueError, OSError):
        libc = "musl"  # the one that lacks the question
    return f"{sys.platform}-{os.uname().machine}-{libc}"


def run_dir(host_dir: str, run: str) -> str:
    """HostFault for a run id that is no plain name."""
    return os.path.join(host_dir, "runs", _plain(run))


def generation_dir(host_dir: str, run: str, task: str, generation: int) -> str:
    """Of one task. HostFault for a task that is none."""
    type_, _, index = task.partition(":")
    if not (type_.isidentifier() and index.isdecimal()):
        raise HostFault("bad-order", f"not a task: {task!r}")
    return os.path.join(
        run_dir(host_dir, run), "tasks", f"{type_}-{int(index)}", f"gen-{int(generation):06d}"
    )


def generations(host_dir: str, run: str) -> Iterator[tuple[str, int, str]]:
    """(task, generation, directory) of all that the host remembers of a run; a task's newest first."""
    tasks_dir = os.path.join(run_dir(host_dir, run), "tasks")
    for name in sorted(_list(tasks_dir)):
        type_, _, index = name.rpartition("-")
        directory = os.path.join(tasks_dir, name)
        for generation in sorted((g for g in _list(directory) if _is_generation(g)), reverse=True):
            yield f"{type_}:{index}", int(generation[4:]), os.path.join(directory, generation)


def accept_epoch(host_dir: str, run: str, epoch: int, *, create: bool) -> None:
    """Remembers the highest epoch that ordered anything of the run; HostFault `superseded` for a lower one.

    Under a lock, since two coordinators' agents may be here at once. With `create` False, a host that does
    not know the run does not begin to.
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
            # One write of a fixed width: it is there as a whole or not at all.
            os.pwrite(handle, b"%020d\n" % epoch, 0)
    finally:
        os.close(handle)


def refuse_superseded(run: str, seen: int, epoch: int) -> None:
    """HostFault `superseded` for an order of an older coordinator than the host has heard."""
    if epoch < seen:
        raise HostFault(
            "superseded",
            f"a coordinator of epoch {seen} has taken over {run}; this one has epoch {epoch}",
            "this coordinator should stop",
        )


def epoch(host_dir: str, run: str) -> int:
    """The highest epoch that ordered anything of the run; 0 where none is known."""
    try:
        with open(os.path.join(run_dir(host_dir, run), "epoch")) as file:
            return int(file.read() or "0")
    except (OSError, ValueError):
        return 0


def write_json(path: str, value: dict[str, Any]) -> None:
    """Whole or not at all, for its owner only."""
    import json

    temporary = f"{path}.{os.getpid()}.tmp"
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(handle, "w", encoding="utf-8", errors="surrogateescape") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    os.rename(temporary, path)


def fault_of(error: OSError) -> HostFault:
    """The world's refusal in the words of a reply."""
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
    """A name that stays in its directory."""
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
