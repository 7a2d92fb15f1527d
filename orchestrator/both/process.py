"""The processes of this host: their identity, whether they live, and signals that reach only the process meant.

The kernel reuses pids, so a process is identified by (boot id, pid, start time). A process that does not match in all
three is never signalled. This works on Linux only: everything is read from /proc.
"""

from __future__ import annotations

import os
import signal as _signal

from orchestrator.both import durable
from orchestrator.both.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping
    from typing import Any

BOOT_VARIABLE = "ORCH_BOOT_ID"
"""Set by the keeper of a pod for all that it starts. A new pod may run under the same kernel as the old one."""

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def environ_without_here(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment for a Python that is started where a person works: code that lies there is not imported.

    `-P` leaves out the current directory, but not a PYTHONPATH that names it: `export PYTHONPATH=$PYTHONPATH:/opt`
    begins with an empty entry, which means the same.
    """
    kept = dict(environ)
    try:
        here = os.getcwd()
    except FileNotFoundError:  # it was removed, and so holds no code
        here = ""
    if "PYTHONPATH" in kept:
        places = kept["PYTHONPATH"].split(os.pathsep)
        elsewhere = [place for place in places if os.path.isabs(place) and os.path.realpath(place) != here]
        kept["PYTHONPATH"] = os.pathsep.join(elsewhere)
    return kept


class Identity:
    """The identity of one process, unique across all boots of a host."""

    __slots__ = ("boot_id", "pid", "start_time")

    def __init__(self, boot_id: str, pid: int, start_time: int) -> None:
        self.boot_id = boot_id
        self.pid = pid
        self.start_time = start_time
        """Clock ticks since the boot, as in /proc/<pid>/stat."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        return f"Identity({self.boot_id!r}, {self.pid}, {self.start_time})"

    def _key(self) -> tuple[str, int, int]:
        return (self.boot_id, self.pid, self.start_time)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON, for a file or a frame."""
        return {"boot_id": self.boot_id, "pid": self.pid, "start_time": self.start_time}

    @staticmethod
    def from_json(value: dict[str, Any]) -> Identity:
        """Parse what `to_json` returned. Raises KeyError, TypeError or ValueError for anything else."""
        return Identity(str(value["boot_id"]), int(value["pid"]), int(value["start_time"]))


def boot_id() -> str:
    """Return the kernel's boot id, which differs after every boot; in a pod that of its first process."""
    pod = os.environ.get(BOOT_VARIABLE)
    if pod:
        return pod
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def identity(pid: int) -> Identity | None:
    """Return the identity of the process that has this pid now. None: there is none, or it is a zombie."""
    stat = stat_of(pid)
    if stat is None or stat.is_gone:
        return None
    return Identity(boot_id(), pid, stat.start_time)


def alive(who: Identity) -> bool:
    """Return whether exactly that process still runs.

    Where we cannot even look at ourselves, as on a host without a free descriptor, nobody is known to be gone.
    """
    return identity(who.pid) == who or stat_of(os.getpid()) is None


def started_with(*arguments: str) -> bool:
    """Return whether a process of our user was started with these arguments, one after the other."""
    wanted, my_uid = b"\0".join((b"", *map(os.fsencode, arguments), b"")), os.getuid()
    for pid in _pids():
        try:
            with open(f"/proc/{pid}/cmdline", "rb", buffering=0) as file:
                if wanted in file.read() and owner(pid) == my_uid:
                    return True
        except OSError:
            continue  # it has ended
    return False


def signal(who: Identity, number: int) -> bool:
    """Send a signal to exactly that process. Return False if it is gone, or another process has its pid.

    Raises:
        PermissionError: we may not signal the process.
    """
    try:
        handle = os.pidfd_open(who.pid)
    except ProcessLookupError:
        return False
    except (OSError, AttributeError):
        # kernels before 5.3 have no pidfd_open
        if identity(who.pid) != who:
            return False
        try:
            os.kill(who.pid, number)
        except ProcessLookupError:
            return False
        return True
    try:
        # The handle stays with one process. If that is the one we mean, no race is left.
        if identity(who.pid) != who:
            return False
        _signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
    return True


def state(who: Identity) -> str | None:
    """Return the kernel's letter for the process's state (R, S, D, T …); None if it is gone.

    Of a process whose main thread has ended it is that of another thread: D if one of them is in it.
    """
    stat = stat_of(who.pid)
    if stat is None or stat.is_gone or stat.start_time != who.start_time:
        return None
    if not stat.is_zombie:
        return stat.state
    letters = [each.state for each in _threads(who.pid) if not each.is_zombie]
    return "D" if "D" in letters else letters[0] if letters else None


def wait_channel(pid: int) -> str | None:
    """Return the kernel's function in which the process waits uninterruptibly; None if that cannot be seen."""
    for thread in _threads(pid):
        if thread.state == "D":
            try:
                with open(f"/proc/{pid}/task/{thread.pid}/wchan") as file:
                    channel = file.read().strip()
            except OSError:
                continue
            if channel not in ("", "0"):
                return channel
    return None


def command(pid: int) -> str:
    """Return the name of the process's program, as the kernel knows it; empty if it is gone."""
    return durable.text_of(f"/proc/{pid}/comm").strip()


class Mark(Value):
    """A process that the environment it was started with says to belong to a task."""

    who: Identity
    run: str
    task: str
    generation: int


def marks(host_dir: str | None = None, *, run: str | None = None) -> list[Mark]:
    """Return our user's marked processes, without this one; of one run if it is given.

    With `host_dir`, only those that were started from it, since two hosts of a test may share a kernel, or from a
    directory beside it that no machine has: a version before had it before the host got another name.
    """
    wanted = os.fsencode(run) if run is not None else None
    found = []
    me, my_uid = os.getpid(), os.getuid()
    for pid in _pids():
        is_other = pid != me and owner(pid) == my_uid
        environ = environment(pid, having=wanted or b"ORCH_RUN=") if is_other else {}
        its_run, generation = environ.get(b"ORCH_RUN", b""), environ.get(b"ORCH_GENERATION", b"")
        if not its_run or its_run != (wanted or its_run) or not generation.isdigit():
            continue
        there = os.fsdecode(environ.get(b"ORCH_HOST_DIR", b""))
        if host_dir is None or _is_from(there, host_dir):
            who = identity(pid)
            if who is not None:
                task = os.fsdecode(environ.get(b"ORCH_TASK", b""))
                found.append(Mark(who, os.fsdecode(its_run), task, int(generation)))
    return found


def marked(
    run: str, generations: Container[int], *, host_dir: str | None = None, task: str | None = None
) -> list[Identity]:
    """Return the processes of these generations of the run, as `marks` finds them; with `task`, only that task's.

    The generations are given one by one: a standby has a higher number than the generation that trains.
    """
    return [
        mark.who
        for mark in marks(host_dir, run=run)
        if mark.generation in generations and task in (None, mark.task)
    ]


def _is_from(there: str, host_dir: str) -> bool:
    if there == host_dir:
        return True
    try:
        return _home(there) == _home(host_dir) and not any(
            name.startswith("machine.") for name in os.listdir(there)
        )
    except OSError:
        return True  # it was removed


def _home(host_dir: str) -> str:
    above, _ = os.path.split(host_dir)
    return os.path.dirname(above) if os.path.basename(above) == "hosts" else host_dir


def descendants(pid: int) -> list[Identity]:
    """Return all living processes below `pid`, without itself. The orphans that a subreaper adopted are included."""
    boot = boot_id()
    children: dict[int, list[Stat]] = {}
    for other in _pids():
        stat = stat_of(other)
        if stat is not None:
            children.setdefault(stat.parent, []).append(stat)
    processes = []
    below = list(children.get(pid, ()))
    while below:
        stat = below.pop()
        if not stat.is_gone:
            processes.append(Identity(boot, stat.pid, stat.start_time))
        below += children.get(stat.pid, ())
    return processes


def catches(pid: int, number: int) -> bool:
    """Return whether the process has a handler of its own for that signal."""
    return bool(_status(pid, b"SigCgt", 16) >> (number - 1) & 1)


def peak_rss_bytes(pid: int) -> int | None:
    """Return the most memory that this one process has had resident; None if unknown."""
    return _status(pid, b"VmHWM", 10) * 1024 or None


def _status(pid: int, name: bytes, base: int) -> int:
    """Return a number of /proc's `status` of a process; 0 if it is unknown."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            return next((int(line.split()[1], base) for line in file if line.startswith(name + b":")), 0)
    except (OSError, ValueError, IndexError):
        return 0


def kernel_view(pid: int) -> str:
    """Describe a process that does not answer, as the kernel sees it: its state, and where it waits."""
    parts = []
    for name in ("status", "wchan", "stack"):
        try:
            with open(f"/proc/{pid}/{name}", errors="replace") as file:
                text = file.read(16384).strip()
        except OSError as e:
            text = e.strerror or str(e)
        if name == "status":
            keep = ("State:", "Threads:", "VmRSS:", "SigBlk:", "SigIgn:", "SigCgt:")
            text = "\n".join(line for line in text.splitlines() if line.startswith(keep)) or text
        parts.append(f"{name}: {text}" if "\n" not in text else f"{name}:\n{text}")
    return "\n".join(parts)


_libc: Any = None


def load_prctl() -> bool:
    """Load prctl before a fork, because loading a library after a fork is not safe. Return False without ctypes."""
    global _libc
    if _libc is None:
        try:
            import ctypes

            _libc = ctypes.CDLL(None, use_errno=True)
        except (ImportError, OSError):
            return False
    return True


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this fresh child once the parent's *thread* that forked it ends.

    `load_prctl` must have been called before the fork. Raises ProcessLookupError if the parent is gone already.
    """
    if _libc is not None:
        _libc.prctl(PR_SET_PDEATHSIG, int(_signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        raise ProcessLookupError("the parent died before its child had started")


def become_subreaper() -> bool:
    """Let orphans below us become our children and not those of process 1. Return False if the host cannot."""
    return load_prctl() and _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


class Stat:
    """A process or a thread, as /proc/<pid>/stat tells."""

    __slots__ = ("cpu_ticks", "parent", "pid", "rss_pages", "start_time", "state", "threads")

    def __init__(self, pid: int, fields: list[bytes]) -> None:
        self.pid = pid
        self.state = fields[0].decode()
        self.parent = int(fields[1])
        self.cpu_ticks = int(fields[11]) + int(fields[12])
        self.threads = int(fields[17])
        self.start_time = int(fields[19])
        self.rss_pages = int(fields[21])

    @property
    def is_zombie(self) -> bool:
        """Whether the main thread has ended."""
        return self.state in "ZX"

    @property
    def is_gone(self) -> bool:
        """Whether no thread is left. A thread in the kernel keeps GPU memory and ports after the main one has ended."""
        return self.is_zombie and self.threads <= 1


def _threads(pid: int) -> list[Stat]:
    try:
        names = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    threads = [stat_of(int(name), f"/proc/{pid}/task/{name}/stat") for name in names]
    return [stat for stat in threads if stat is not None]


def stat_of(pid: int, path: str | None = None) -> Stat | None:
    """Return /proc's `stat` of a process, or of the thread whose file is `path`. None if it is gone."""
    try:
        with open(path or f"/proc/{pid}/stat", "rb", buffering=0) as file:
            # The process chooses the name in parentheses, which may itself hold spaces and parentheses.
            return Stat(pid, file.read().rpartition(b")")[2].split())
    except (OSError, IndexError, ValueError):
        return None


def owner(pid: int) -> int | None:
    """Return the user id of a process; None if it is gone, or cannot be seen, as from within a container."""
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None


def environment(pid: int, *, having: bytes = b"") -> dict[bytes, bytes]:
    """Return the environment that a process was started with; empty if it lacks `having`, or we may not read it.

    Every process of the host is asked, and few have any of our text, so the others are not parsed.
    """
    try:
        with open(f"/proc/{pid}/environ", "rb", buffering=0) as file:
            data = file.read()
    except OSError:
        return {}
    if having not in data:
        return {}
    entries: Iterable[bytes] = data.split(b"\0")
    return {name: value for name, _, value in (entry.partition(b"=") for entry in entries)}


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]
