"""The tasks' logs: on the host, where old parts are rotated away, and the rule for the head's copies."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from orchestrator.head.records import log_file, runlogs
from tests.sim.heap import Violation

if TYPE_CHECKING:
    from tests.sim.run import SimRun
    from tests.sim.world import World

KEPT_BYTES = 4000
"""So little that a copy which is behind has gaps."""


class HostLog:
    """The log of a generation of a task."""

    def __init__(self) -> None:
        self.text = bytearray()
        """All that was ever written, whether it is kept or not."""

    def write(self, at: float, words: str) -> None:
        """Write a line, as the shim does."""
        self.text += f"{1_700_000_000 + at:.6f} o {words}\n".encode()

    def read(self, offset: int, bytes_max: int) -> tuple[int, bytes]:
        """Return what is kept from that offset on, and where it begins."""
        offset = min(max(offset, len(self.text) - KEPT_BYTES), len(self.text))
        return offset, bytes(self.text[offset : offset + bytes_max])


class SimLogs(runlogs.RunLogs):
    """The real copies, on a disk that may be full."""

    def __init__(self, world: World, state_dir: str) -> None:
        super().__init__(state_dir)
        self._world = world

    def append(self, run_id: str, task: str, generation: int, offset: int, data: bytes) -> int:
        """Fail where the disk is full."""
        if self._world.disk_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().append(run_id, task, generation, offset, data)


def check(run: SimRun, state_dir: str) -> int:
    """Check each copy of a run's logs, and return how many there are.

    A copy is the log on the host up to some byte, without what its gaps name. Nothing of another task or generation is
    in it.
    """
    logs = runlogs.RunLogs(state_dir)
    files = logs.files(run.run_id)
    for task, generation, path in files:
        origins = [
            machine.records[run.run_id, task, generation].log.text
            for machine in run.world.machines.values()
            if (run.run_id, task, generation) in machine.records
        ]
        if len(origins) == 1 and not run.is_lied_about:  # two coordinators may have started the same
            _compare(path, bytes(origins[0]))
    return len(files)


def _compare(path: str, origin: bytes) -> None:
    with open(path, "rb") as file:
        copy = file.read()
    at, offset = 0, 0
    for gap in [*log_file.read_gaps(path), None]:
        end = gap.start if gap is not None else len(copy)
        if copy[at:end] != origin[offset : offset + end - at]:
            raise Violation(
                "log-unlike", f"{os.path.basename(path)} is not what the host has, from byte {at} on"
            )
        if gap is not None:
            if gap.offset < offset + end - at:
                raise Violation("log-unlike", f"{os.path.basename(path)} repeats bytes before {gap.offset}")
            at, offset = gap.after, gap.offset
