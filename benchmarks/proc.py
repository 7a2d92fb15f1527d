"""What /proc tells about a process: its CPU, its memory, and when it began."""

from __future__ import annotations

import os
import time
from pathlib import Path

_CPUCLOCK_SCHED = 2
"""The kernel's number for the clock of all that a process's threads have run."""

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def _stat(pid: int) -> list[str]:
    """Return the fields after the name. Index 0 is the state, which is field 3 in proc(5)."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def cpu_s(pid: int) -> float:
    """Return the CPU of a process so far, in seconds, with that of all its threads, also those that have ended.

    It is read from the process's CPU clock, as clock_getcpuclockid(3) names it, with a resolution of nanoseconds: /proc
    counts in ticks of 10 ms.
    """
    try:
        return time.clock_gettime((~pid << 3) | _CPUCLOCK_SCHED)
    except OSError as e:
        raise ProcessLookupError(f"pid {pid} has no CPU clock any more") from e


def family_cpu_s(pid: int) -> float:
    """Return the CPU of a process so far, with all its threads, and with the children that it has reaped, in seconds.

    That of the children, and of theirs, is told in ticks of 10 ms. The kernel sums it up in full and rounds only what
    it tells, so differences that follow each other lose nothing.
    """
    user, system = _stat(pid)[13:15]
    return cpu_s(pid) + (int(user) + int(system)) / TICKS_PER_S


def rss_mb(pid: int) -> float:
    """Return the resident memory in megabytes (10^6 bytes)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise ProcessLookupError(f"pid {pid} has no memory any more")


def parent(pid: int) -> int:
    """Return the pid of a process's parent."""
    return int(_stat(pid)[1])


def began_s(pid: int) -> float:
    """Return when a process began, in seconds of CLOCK_BOOTTIME, with a resolution of 10 ms."""
    return int(_stat(pid)[19]) / TICKS_PER_S


def children(pid: int) -> list[int]:
    """Return the living children of a process."""
    found = []
    for entry in os.listdir("/proc"):
        try:
            if entry.isdecimal() and parent(int(entry)) == pid:
                found.append(int(entry))
        except OSError:
            continue
    return found


def available_bytes() -> int:
    """Return how much memory programs can still take, what is cached included."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0
