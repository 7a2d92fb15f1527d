"""What a task uses of its host: the CPU and memory of its process and of all below it."""

from __future__ import annotations

import os

from orchestrator.both import process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from orchestrator.protocol.measures import TaskMeasures

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def tree(pid: int) -> list[int]:
    """Return `pid` and the pids below it, from /proc/<pid>/task/*/children.

    On a host with thousands of processes this is much cheaper than `descendants`. It is less exact: use it to sample,
    not to kill.
    """
    pids = []
    below = [pid]
    while below:
        parent = below.pop()
        pids.append(parent)
        try:
            for thread in os.listdir(f"/proc/{parent}/task"):
                with open(f"/proc/{parent}/task/{thread}/children") as file:
                    below += [int(child) for child in file.read().split()]
        except OSError:
            continue
    return pids


class Sampler:
    """Measures the CPU and memory of a process and all processes below it, from one call to the next.

    It reads /proc and not psutil, which says the same of processes and whose import costs a shim 20 ms and 5 MB.
    """

    def __init__(self) -> None:
        self._cpu_s: dict[int, float] = {}
        self._disk: dict[int, tuple[int, int]] = {}
        self._at: float | None = None

    def sample(self, pid: int, at: float) -> TaskMeasures:
        """Return CPU in percent of one core since the last call, resident bytes, and the bytes of disks in a second.

        Each is None if it is unknown. `at` is the time of a monotonic clock.
        """
        cpu_s: dict[int, float] = {}
        disk: dict[int, tuple[int, int]] = {}
        rss_bytes = 0
        for each in tree(pid):
            stat = process.stat_of(each)
            if stat is not None:
                cpu_s[each] = stat.cpu_ticks / _TICKS_PER_S
                rss_bytes += stat.rss_pages * _PAGE_BYTES
                if (moved := disk_bytes(each)) is not None:
                    disk[each] = moved
        percent = None
        rates: list[float | None] = [None, None]
        if self._at is not None and at > self._at:
            # A process that has begun since then counts from its start; one that has ended does not count any more.
            spent_s = sum(used - self._cpu_s.get(each, 0.0) for each, used in cpu_s.items())
            percent = round(max(0.0, 100.0 * spent_s / (at - self._at)), 1)
            if disk:
                none = (0, 0)
                moved_bytes = [
                    sum(now[i] - self._disk.get(each, none)[i] for each, now in disk.items()) for i in (0, 1)
                ]
                rates = [round(max(0, moved) / (at - self._at)) for moved in moved_bytes]
        self._cpu_s, self._disk, self._at = cpu_s, disk, at
        resident = rss_bytes if cpu_s else None
        return {
            "cpu_percent": percent,
            "rss_bytes": resident,
            "disk_read_per_s": rates[0],
            "disk_write_per_s": rates[1],
        }


def disk_bytes(pid: int) -> tuple[int, int] | None:
    """Return the bytes that a process has read from disks and written to them; None if nobody may know."""
    try:
        with open(f"/proc/{pid}/io", "rb") as file:
            told = dict(line.split(b": ") for line in file.read().splitlines())
        return int(told[b"read_bytes"]), int(told[b"write_bytes"])
    except (OSError, ValueError, LookupError):
        return None
