"""What the GPUs of this host do: one `nvidia-smi` goes on beside the agent, and tells it every five seconds.

It is started once, where a device of NVIDIA's driver is: to start one each time would cost up to a second of CPU. It
ends with the agent. Where it fails, or hangs with its driver, nothing is told any more.
"""

from __future__ import annotations

import os
import subprocess
import time
from functools import partial

from orchestrator.adapters.host import process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from orchestrator.protocol.frames import GpuLoad

EVERY_S = 5
STALE_S = 30.0
GPUS_MAX = 64

_COMMAND = [
    "nvidia-smi",
    "--query-gpu=index,name,utilization.gpu,memory.used,memory.total,temperature.gpu,power.draw",
    "--format=csv,noheader,nounits",
    f"--loop={EVERY_S}",
]
_BYTES_MAX = 1 << 16


class GpuLoads:
    """Reads what has come, and never waits for it."""

    def __init__(
        self, command: list[str] | None = None, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._command, self._now = command or _COMMAND, now
        self._child: subprocess.Popen[bytes] | None = None
        self._held = b""
        self._latest: dict[int, GpuLoad] = {}
        self._heard_at = 0.0

    def start(self) -> None:
        """Start to listen. Without nvidia-smi nothing is ever told."""
        process.load_prctl()
        try:
            self._child = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                preexec_fn=partial(process.die_with_parent, os.getpid()),
            )
        except OSError:  # no nvidia-smi on the PATH
            return
        assert self._child.stdout is not None
        os.set_blocking(self._child.stdout.fileno(), False)

    def latest(self) -> list[GpuLoad]:
        """Return what was told last of each GPU, in their order; nothing where that is too old."""
        if self._child is None or self._child.stdout is None:
            return []
        try:
            told = os.read(self._child.stdout.fileno(), _BYTES_MAX)
        except OSError:  # nothing new
            told = b""
        *lines, self._held = (self._held + told).split(b"\n")
        self._held = self._held[-1000:]
        for line in lines:
            self._take(line.decode("ascii", "replace").split(","))
        if self._now() - self._heard_at > STALE_S:
            self._latest = {}
        return [self._latest[index] for index in sorted(self._latest)]

    def _take(self, cells: list[str]) -> None:
        if len(cells) != 7 or not cells[0].strip().isdecimal() or int(cells[0]) >= GPUS_MAX:
            return
        used, total = _number(cells[3]), _number(cells[4])
        self._heard_at = self._now()
        self._latest[int(cells[0])] = {
            "index": int(cells[0]),
            "name": cells[1].strip(),
            "utilization_percent": _number(cells[2]),
            "memory_used_bytes": None if used is None else int(used) << 20,
            "memory_total_bytes": None if total is None else int(total) << 20,
            "temperature_c": _number(cells[5]),
            "power_w": _number(cells[6]),
        }


def _number(text: str) -> float | None:
    """Return None for `[N/A]`."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if abs(number) < 1e9 else None
