"""What the kernel knows of a process: CPU, memory, when it began. All from /proc."""

from __future__ import annotations

import os
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def _stat(pid: int) -> list[str]:
    """The fields after the name: index 0 is the state, field 3 of proc(5)."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def cpu_s(pid: int) -> float:
    """CPU of the process and all its threads so far, in seconds; 10 ms fine."""
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def thread_cpu_ms(pid: int) -> float:
    """CPU of the process's main thread so far, in milliseconds; nanoseconds fine."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e6


def rss_mb(pid: int) -> float:
    """Resident memory in megabytes (10^6 bytes)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise ProcessLookupError(f"pid {pid} has no memory any more")


def parent(pid: int) -> int:
    """Its parent's pid."""
    return int(_stat(pid)[1])


def began_s(pid: int) -> float:
    """When it began, in seconds of CLOCK_BOOTTIME; 10 ms fine."""
    return int(_stat(pid)[19]) / TICKS_PER_S


def children(pid: int) -> list[int]:
    """Its children that live."""
    found = []
    for entry in os.listdir("/proc"):
        try:
            if entry.isdecimal() and parent(int(entry)) == pid:
                found.append(int(entry))
        except OSError:
            continue
    return found
