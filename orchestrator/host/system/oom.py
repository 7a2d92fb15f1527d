"""Counts the kernel's OOM kills, as close to one process as the host allows.

The kernel counts for each memory group how many of the group's own processes it has killed (cgroup v2:
`memory.events.local`, v1: `memory.oom_control`). The whole host's count has the processes of other people in it as
well, so it is used only where a process's group is not known.
"""

from __future__ import annotations

import os

from orchestrator.both.value import Value
from orchestrator.host.system.cgroup import keyed, number
from orchestrator.host.system.kernel_log import KERNEL_LOG, KernelLog

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_LIMITS = ("memory.max", "memory.limit_in_bytes")
_RECORDS_MAX = 20_000
"""More than a kernel keeps."""


class OwnKills:
    """The OOM kills in a task's own control group, with the times at which they were seen."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, int]] = []

    def sample(self, at: float, kills: int) -> None:
        """Note the count of kills at a time."""
        if kills > (self._seen[-1][1] if self._seen else 0):
            self._seen.append((at, kills))

    def since(self, at: float) -> int:
        """Return how many were seen after that time."""
        before = [kills for seen_at, kills in self._seen if seen_at <= at]
        return self._seen[-1][1] - max(before, default=0) if self._seen else 0


class OomKills:
    """The OOM kills of the last seconds among the processes that share a task's memory group.

    A launcher may move a task into another group right after its start. So the group is looked up at each sample, and
    its count is used only if the last two samples found the same group.
    """

    def __init__(
        self, proc: str = "/proc", groups: str = "/sys/fs/cgroup", kernel_log: str = KERNEL_LOG
    ) -> None:
        self._kernel_log = KernelLog(kernel_log)
        self._proc = proc
        self._groups = groups
        self._before = self._last = _Sample(self._host() or 0, None, 0)

    def sample(self, pid: int | None) -> None:
        """Read the counts. Call it every few seconds; `pid` is None before the task's process is started."""
        # The file with the count of the memory group to which a process belongs; None if not known
        file = None if pid is None else next(filter(os.path.isfile, self._files(pid)), None)
        count = None if file is None else _count(file)
        sample = _Sample(self._host() or 0, None if count is None else file, count or 0)
        self._before, self._last = self._last, sample

    def recent(self) -> int:
        """Return how many kills were counted since the sample before the last.

        The kernel counts at the time of the kill, but a process with much memory ends some time later. So one sample
        may have been taken between the two.
        """
        file = self._before.file
        if file is not None and file == self._last.file:
            count = _count(file)
            if count is not None:
                return count - self._before.in_group
        return (self._host() or 0) - self._before.on_host

    def is_one(self, pid: int | None, peak_bytes: int | None) -> bool:
        """Return whether one of the kills was certainly that of this process. It must have been started after us.

        The kernel's log names it, if we may read that and our pids are the kernel's. Else its peak decides: a process
        with half of the memory was the largest, which the kernel kills first.
        """
        named = b"Killed process %d (" % (pid or 0)
        if any(named in line for line in self._kernel_log.lines(_RECORDS_MAX)):
            return True
        # How much memory the counted processes may use: the least limit above them; None if unknown
        limits = [keyed(os.path.join(self._proc, "meminfo"), unit=" kB").get("MemTotal:", 0) << 10]
        directory = os.path.dirname(self._last.file or "")
        while directory.startswith(self._groups + "/") or directory == self._groups:
            limits += [number(os.path.join(directory, name)) or 0 for name in _LIMITS]
            directory = os.path.dirname(directory)
        memory = min(filter(None, limits), default=None)
        return memory is not None and (peak_bytes or 0) * 2 >= memory

    def _host(self) -> int | None:
        return _count(os.path.join(self._proc, "vmstat"))

    def _files(self, pid: int) -> Iterator[str]:
        for hierarchy, controllers, path in _memberships(os.path.join(self._proc, str(pid), "cgroup")):
            if "memory" in controllers.split(","):
                # A container sees its path from the outside, and has its own group mounted where the root's would be.
                for known in (path, ""):
                    yield os.path.join(self._groups, "memory" + known, "memory.oom_control")
                return
            # Without the directory, the path is of another namespace, and its parents here are other groups.
            if hierarchy != "0" or not os.path.isdir(self._groups + path):
                continue
            # A group without the controller belongs to the memory group of its nearest parent with it.
            directory = path.rstrip("/")
            yield os.path.join(self._groups + directory, "memory.events.local")
            while directory:
                directory = directory.rpartition("/")[0]
                yield os.path.join(self._groups + directory, "memory.events.local")


class _Sample(Value):
    on_host: int
    file: str | None
    in_group: int


def _memberships(path: str) -> Iterator[tuple[str, str, str]]:
    """Yield the lines of /proc/<pid>/cgroup: the hierarchy's number, its controllers, and the path."""
    try:
        with open(path, errors="surrogateescape") as file:
            for line in file:
                number, _, rest = line.rstrip("\n").partition(":")
                controllers, _, group = rest.partition(":")
                yield number, controllers, group
    except OSError:
        return


def _count(path: str) -> int | None:
    return keyed(path).get("oom_kill")
