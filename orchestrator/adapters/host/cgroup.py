"""A control group of its own for each task, where the host lets us: nothing in it can outlive its killing.

Only the unified hierarchy (v2) is used. A user without rights on it gets None, and the callers sweep by
descent and by marker instead, and say so.
"""

from __future__ import annotations

import os

_ROOTS = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified")
_OURS = "orch"


class Cgroup:
    """One leaf. Every method works on what is there, and none raises because the group is gone."""

    def __init__(self, path: str) -> None:
        self.path = path

    def open_for_child(self) -> int:
        """A descriptor for `join`, to be opened before the fork. OSError where it cannot be."""
        return os.open(os.path.join(self.path, "cgroup.procs"), os.O_WRONLY | os.O_CLOEXEC)

    @staticmethod
    def join(descriptor: int) -> None:
        """In a fresh child: moves itself in. OSError where the kernel refuses."""
        os.write(descriptor, b"0")

    def pids(self) -> list[int]:
        """All processes in it and in groups below it."""
        found = []
        for directory, _, _ in os.walk(self.path):
            text = _read(os.path.join(directory, "cgroup.procs")) or ""
            found += [int(line) for line in text.split()]
        return found

    def kill(self) -> None:
        """SIGKILL to everything in it, forks that are under way included. One call may not be the last."""
        try:
            with open(os.path.join(self.path, "cgroup.kill"), "w") as file:
                file.write("1")
            return
        except OSError:
            pass  # a kernel before 5.14: one by one
        from signal import SIGKILL

        for pid in self.pids():
            try:
                # Between the look and the kill a pid could only change hands if its owner had just died in
                # the group, and the kernel gives a pid again last of all: the window is a few microseconds.
                os.kill(pid, SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue

    def empty(self) -> bool:
        """Whether no process lives in it, nor below it."""
        events = _keyed(os.path.join(self.path, "cgroup.events"))
        return events.get("populated", 0) == 0

    def peak_bytes(self) -> int | None:
        """The most memory that all of it had at once; None where the memory controller is not on."""
        text = _read(os.path.join(self.path, "memory.peak"))
        return int(text) if text and text.strip().isdigit() else None

    def oom_kills(self) -> int | None:
        """How many of its processes the kernel has killed for memory; None where it is not told."""
        return _keyed(os.path.join(self.path, "memory.events")).get("oom_kill")

    def remove(self) -> bool:
        """Removes it, with the groups below it. False where something still lives in it."""
        for directory, _, _ in os.walk(self.path, topdown=False):
            try:
                os.rmdir(directory)
            except FileNotFoundError:
                continue
            except OSError:
                return False
        return True


def name_of(host_dir: str, run: str, task: str, generation: int) -> str:
    """The group's name: the same for the same task, and no other, even where two hosts share a kernel."""
    from hashlib import sha256

    return sha256("\0".join((host_dir, run, task, str(generation))).encode()).hexdigest()[:24]


def create(name: str) -> Cgroup | None:
    """The group of that name, made where it was not; None where the host does not let us."""
    base = _base()
    if base is None:
        return None
    path = os.path.join(base, name)
    try:
        os.makedirs(path, exist_ok=True)
    except OSError:
        return None
    # Ours to ask for, never the root's: what the host's own setup has not delegated stays off.
    _write(os.path.join(base, "cgroup.subtree_control"), "+memory")
    group = Cgroup(path)
    try:
        os.close(group.open_for_child())
    except OSError:
        group.remove()
        return None
    return group


def find(name: str) -> Cgroup | None:
    """The group of that name where it exists."""
    base = _base()
    path = None if base is None else os.path.join(base, name)
    return Cgroup(path) if path is not None and os.path.isdir(path) else None


def usable() -> bool:
    """Whether a task would get a group: tried with a child that joins one and ends."""
    group = create(f"probe-{os.getpid()}")
    if group is None:
        return False
    try:
        descriptor = group.open_for_child()
    except OSError:
        group.remove()
        return False
    child = os.fork()
    if child == 0:
        try:
            group.join(descriptor)
            os._exit(0)
        except BaseException:  # a forked child must end here, whatever it was
            os._exit(1)
    os.close(descriptor)
    _, status = os.waitpid(child, 0)
    group.remove()
    return status == 0


def _base() -> str | None:
    for root in _ROOTS:
        if os.path.exists(os.path.join(root, "cgroup.procs")) and os.access(root, os.W_OK):
            return os.path.join(root, _OURS)
    return None


def _read(path: str) -> str | None:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return None


def _write(path: str, text: str) -> bool:
    try:
        with open(path, "w") as file:
            file.write(text)
    except OSError:
        return False
    return True


def _keyed(path: str) -> dict[str, int]:
    """A file of `name number` lines."""
    found = {}
    for line in (_read(path) or "").splitlines():
        name, _, value = line.partition(" ")
        if value.isdigit():
            found[name] = int(value)
    return found
