"""Where, when and of which commit figures were measured. Every page of figures says it at its head."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[1]
CORES = sorted(os.sched_getaffinity(0))

BUSY_SHARE = 0.3
"""If the load before the start is above this part of the cores, the page says that the machine was busy."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Where, when and how a page was measured."""

    measured_at: str
    commit: str
    cpu: str
    cores: int
    load: float
    """The load in the minute before it began."""
    command: str

    @property
    def is_busy(self) -> bool:
        """Whether other work ran here before the measurement began."""
        return self.load > BUSY_SHARE * self.cores


def here(command: str) -> Machine:
    """Return this machine, now, with the commit that is checked out and the load before the measurement."""
    changed = bool(_said(["git", "status", "--porcelain", "--untracked-files=no"]).strip())
    commit = _said(["git", "rev-parse", "--short=12", "HEAD"]).strip() or "unknown"
    return Machine(
        measured_at=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        commit=f"{commit}, with changes that are not committed" if changed else commit,
        cpu=_cpu(),
        cores=len(CORES),
        load=os.getloadavg()[0],
        command=command,
    )


def claim_memory(wanted_bytes: int) -> None:
    """Touch so much memory, and let it go. A virtual machine that gave it back is given it by its host at 2 s a GB."""
    room = min(wanted_bytes, psutil.virtual_memory().available // 2)
    mmap.mmap(-1, room, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE).close()


_RELEASES = """import contextlib, mmap, sys, time
blocks = [mmap.mmap(-1, 32 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) for _ in range(int(sys.argv[1]))]
for block in blocks:
    with contextlib.suppress(OSError):  # a kernel without them
        block.madvise(mmap.MADV_HUGEPAGE)
    for page in range(0, len(block), mmap.PAGESIZE):
        block[page] = 1
print("ready", flush=True)
sys.stdin.read(1)
while blocks:
    blocks.pop().close()
    time.sleep(0.03)
sys.stdin.read()
"""
"""Touches blocks of 32 MiB, and lets them go at 1 GB/s, from when it reads a byte."""


@contextmanager
def memory_released(wanted_bytes: int) -> Iterator[None]:
    """Touch so much memory, and let it go at 1 GB/s while the body runs, in a process of its own.

    A virtual machine may give back what is free for two seconds, and then waits for it at 2 s a GB: whatever takes
    longer than that would pay for it, and what is quicker would not.
    """
    blocks = min(wanted_bytes, psutil.virtual_memory().available // 2) >> 25
    command = [sys.executable, "-c", _RELEASES, str(blocks)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as releases:
        assert releases.stdin is not None
        assert releases.stdout is not None
        assert releases.stdout.readline() == b"ready\n"
        releases.stdin.write(b".")
        releases.stdin.flush()
        try:
            yield
        finally:
            releases.kill()


def heading(at: Machine, gpus: str = "no GPU") -> str:
    """Return date, commit, machine with its GPUs and command, with a warning if the machine was busy."""
    text = (
        f"`{at.command}`, {at.measured_at}, commit {at.commit}, {at.cpu}, {at.cores} cores, {gpus}; "
        f"load {at.load:.1f} before it began."
    )
    if at.is_busy:
        text += (
            f"\n\n**Measured on a busy machine** (load {at.load:.1f} on {at.cores} cores): "
            "other work took part of it, so take no figure here for what the machine can do."
        )
    return text


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unknown processor"


def _said(command: list[str]) -> str:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
