"""The load of this host's GPUs: one `nvidia-smi` runs beside the agent, and prints it every five seconds.

It is started once, where a device of NVIDIA's driver is: to start one each time would cost up to a second of CPU. It
ends with the agent. Where it fails, or hangs with its driver, no load is reported any more. A GPU that was listed and
is not listed any more has disappeared. The driver's errors (Xids) are in the kernel's log, if we may read that.
"""

from __future__ import annotations

import os
import subprocess
import time
from functools import partial

from orchestrator.both import process
from orchestrator.host.agent import gpus
from orchestrator.host.system.kernel_log import KERNEL_LOG, KernelLog

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from orchestrator.protocol.reports import GpuFault, GpuLoad

EVERY_S = 5
STALE_S = 30.0
GONE_S = 3 * EVERY_S
"""A GPU that was not listed for this long, while others were, has disappeared."""
XIDS_MAX = 32
GPUS_MAX = 64

_COMMAND = [
    "nvidia-smi",
    "--query-gpu=index,name,utilization.gpu,memory.used,memory.total,temperature.gpu,power.draw,pci.bus_id",
    "--format=csv,noheader,nounits",
    f"--loop={EVERY_S}",
]
_BYTES_MAX = 1 << 16

_XID = b"NVRM: Xid (PCI:"


def xids(log: KernelLog, records_max: int = 200) -> list[tuple[str, int]]:
    """Return (bus, Xid) of each error of the driver since the last call."""
    errors: list[tuple[str, int]] = []
    for line in log.lines(records_max):
        _, marker, rest = line.partition(_XID)
        where, _, number = rest.partition(b"): ")
        digits = number.split(b",")[0]
        if marker and digits.isdigit() and len(digits) < 5:
            errors.append((bus(where.decode("ascii", "replace")), int(digits)))
    return errors


def bus(text: str) -> str:
    """Return a PCI address in one form: `nvidia-smi` and the kernel write the same one differently.

    >>> bus("00000000:3B:00.0"), bus("0000:3b:00")
    ('3b:00', '3b:00')
    """
    parts = text.strip().lower().split(".")[0].split(":")
    domain = parts[0].lstrip("0") if len(parts) == 3 else ""
    return ":".join([*([domain] if domain else []), *parts[-2:]])


class GpuLoads:
    """Reads what has come, and never waits for it."""

    def __init__(
        self,
        command: list[str] | None = None,
        *,
        kernel_log: str = KERNEL_LOG,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._command, self._now = command or _COMMAND, now
        self._kernel_log = KernelLog(kernel_log)
        self._listed_at: dict[int, float] = {}
        self._by_bus: dict[str, int] = {}
        self._xids: list[tuple[str, int]] = []
        self._child: subprocess.Popen[bytes] | None = None
        self._held = b""
        self._latest: dict[int, GpuLoad] = {}
        self._heard_at = 0.0

    def start(self) -> None:
        """Start nvidia-smi. Where there is none, no load is ever reported."""
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
        """Return the last load of each GPU, in their order, without those that are too old."""
        if self._child is None or self._child.stdout is None:
            return []
        try:
            output = os.read(self._child.stdout.fileno(), _BYTES_MAX)
        except OSError:  # nothing new
            output = b""
        *lines, self._held = (self._held + output).split(b"\n")
        self._held = self._held[-1000:]
        for line in lines:
            cells = line.decode("ascii", "replace").split(",")
            if len(cells) not in (7, 8) or not cells[0].strip().isdecimal() or int(cells[0]) >= GPUS_MAX:
                continue
            used, total = gpus.number(cells[3]), gpus.number(cells[4])
            self._heard_at = self._listed_at[int(cells[0])] = self._now()
            if len(cells) == 8:
                self._by_bus[bus(cells[7])] = int(cells[0])
            self._latest[int(cells[0])] = {
                "index": int(cells[0]),
                "name": cells[1].strip(),
                "utilization_percent": gpus.number(cells[2]),
                "memory_used_bytes": None if used is None else int(used) << 20,
                "memory_total_bytes": None if total is None else int(total) << 20,
                "temperature_c": gpus.number(cells[5]),
                "power_w": gpus.number(cells[6]),
            }
        now = self._now()
        for index in [index for index, at in self._listed_at.items() if now - at > STALE_S]:
            self._latest.pop(index, None)
        return [self._latest[index] for index in sorted(self._latest)]

    def faults(self) -> list[GpuFault]:
        """Return the GPUs that have disappeared, and the Xid of each error of a GPU, since the agent began."""
        for error in xids(self._kernel_log):
            if error not in self._xids and len(self._xids) < XIDS_MAX:
                self._xids.append(error)
        gone = [
            index
            for index, at in sorted(self._listed_at.items())
            if self._heard_at - at > GONE_S or self._now() - at > STALE_S
        ]
        faults: list[GpuFault] = [{"index": index, "xid": None} for index in gone]
        for where, xid in self._xids:
            if where in self._by_bus:
                faults.append({"index": self._by_bus[where], "xid": xid})
        return faults
