"""Control groups: a task gets one of its own where the host allows it, and then no process of it escapes a kill.

Only the unified hierarchy (v2) is used. A user without rights on its root uses a scope of the user's own systemd, where
there is one (`user_scope`), else gets None. The callers then find processes by descent and by marker instead, and
report that.
"""

from __future__ import annotations

import os

from orchestrator.both import durable
from orchestrator.host.system import user_scope

_ROOTS = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified")
_OURS = "orch"


class Cgroup:
    """The control group of one task. Apart from opening and joining it, no method raises where the group is gone."""

    def __init__(self, path: str) -> None:
        self.path = path

    def open_for_child(self) -> int:
        """Open the descriptor that `join` needs; call it before the fork. Raises OSError if it cannot be opened."""
        return os.open(os.path.join(self.path, "cgroup.procs"), os.O_WRONLY | os.O_CLOEXEC)

    @staticmethod
    def join(descriptor: int) -> None:
        """Move the calling process, a fresh child, into the group. Raises OSError if the kernel refuses."""
        os.write(descriptor, b"0")

    def pids(self) -> list[int]:
        """Return all processes in the group and in groups below it."""
        pids = []
        for directory, _, _ in os.walk(self.path):
            text = durable.text_of(os.path.join(directory, "cgroup.procs"))
            pids += [int(line) for line in text.split()]
        return pids

    def kill(self) -> None:
        """Send SIGKILL to every process in the group, including forks under way. More than one call may be needed."""
        try:
            with open(os.path.join(self.path, "cgroup.kill"), "w") as file:
                file.write("1")
            return
        except OSError:
            pass  # kernels before 5.14 have no cgroup.kill: the processes are killed one by one
        from signal import SIGKILL

        for pid in self.pids():
            try:
                # The pid could belong to another process only if its owner died just now and the kernel reused
                # the pid at once. It reuses pids in turn, and the window is a few microseconds.
                os.kill(pid, SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue

    def peak_bytes(self) -> int | None:
        """Return the most memory that the group used at once; None if the memory controller is off."""
        return number(os.path.join(self.path, "memory.peak"))

    def oom_kills(self) -> int | None:
        """Return how many of its processes the kernel has killed for lack of memory; None if unknown."""
        return keyed(os.path.join(self.path, "memory.events")).get("oom_kill")

    def remove(self) -> bool:
        """Remove the group and the groups below it. Return False if a process still lives in it."""
        for directory, _, _ in os.walk(self.path, topdown=False):
            try:
                os.rmdir(directory)
            except FileNotFoundError:
                continue
            except OSError:
                return False
        return True


def name_of(host_dir: str, run: str, task: str, generation: int) -> str:
    """Return the name of a task's group. It is unique even where two hosts of a test share a kernel."""
    from hashlib import sha256

    return sha256("\0".join((host_dir, run, task, str(generation))).encode()).hexdigest()[:24]


def create(name: str) -> Cgroup | None:
    """Return the group of that name, and make it where it is missing. None: the host does not allow it.

    Call it in the shim: a user's own systemd moves the calling process into the new scope.
    """
    root = _root()
    base = _base() or (None if root is None else user_scope.enter(name, root))
    if base is None:
        return None
    path = os.path.join(base, name)
    try:
        os.makedirs(path, exist_ok=True)
    except OSError:
        return None
    # This is written in our own directory, never in the root: a controller that the host did not delegate stays off.
    try:
        with open(os.path.join(base, "cgroup.subtree_control"), "w") as file:
            file.write("+memory")
    except OSError:
        pass
    group = Cgroup(path)
    try:
        os.close(group.open_for_child())
    except OSError:
        group.remove()
        return None
    return group


def find(name: str, recorded: object = None) -> Cgroup | None:
    """Return the group of that name, or None if it does not exist. `recorded` is the path that its shim wrote."""
    base = _base()
    path = None if base is None else os.path.join(base, name)
    if isinstance(recorded, str) and os.path.basename(recorded) == name:
        path = recorded
    return Cgroup(path) if path is not None and os.path.isdir(path) else None


def usable() -> bool:
    """Return whether a task would get a group. As root, it is tried with a child process that joins one and exits."""
    if _base() is None:
        return _root() is not None and user_scope.is_there()
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
        except BaseException:  # a forked child must end here, whatever the error was
            os._exit(1)
    os.close(descriptor)
    _, status = os.waitpid(child, 0)
    group.remove()
    return status == 0


def can_leave_login() -> bool:
    """Return whether a shim moves from its login to the user's own systemd, provided that the user lingers."""
    return _base() is None and _root() is not None and user_scope.can_be_asked()


def number(path: str) -> int | None:
    """Parse a file that holds one number; None if it cannot be read, or holds another word."""
    text = durable.text_of(path).strip()
    return int(text) if text.isdigit() else None


def keyed(path: str, unit: str = "") -> dict[str, int]:
    """Parse a file of lines that read `name number`, with the unit after it; empty if it cannot be read."""
    values = {}
    for line in durable.text_of(path).splitlines():
        name, _, value = line.removesuffix(unit).partition(" ")
        value = value.strip()
        if value.isdigit():
            values[name] = int(value)
    return values


def _root() -> str | None:
    """Return where the unified hierarchy is mounted; None if it is not."""
    return next((root for root in _ROOTS if os.path.exists(os.path.join(root, "cgroup.procs"))), None)


def _base() -> str | None:
    root = _root()
    return os.path.join(root, _OURS) if root is not None and os.access(root, os.W_OK) else None
