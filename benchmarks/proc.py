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
    """Return the CPU of a process and its threads so far, in seconds, with the kernel's full resolution.

    It is read from the process's CPU clock, as clock_getcpuclockid(3) names it: /proc counts in ticks of 10 ms.
    """
    try:
        return time.clock_gettime((~pid << 3) | _CPUCLOCK_SCHED)
    except OSError as e:
        raise ProcessLookupError(f"pid {pid} has no CPU clock any more") from e


def thread_cpu_ms(pid: int) -> float:
    """Return the CPU of a process's main thread so far, in milliseconds, with a resolution of nanoseconds."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e6


def exact_cpu_s(pid: int) -> float:
    """Return the CPU of a process's living threads so far, in seconds, with a resolution of nanoseconds."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


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
