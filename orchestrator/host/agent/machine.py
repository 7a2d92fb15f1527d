"""What this host has, and who uses it: CPUs, memory, disk, and GPUs with their processes, for `orch hosts`."""

from __future__ import annotations

import os
import subprocess
import time

from orchestrator.host.agent import gpus, host
from orchestrator.host.agent.leases import ANSWER_S, leased
from orchestrator.host.system import gpu_lease

TYPE_CHECKING = False
if TYPE_CHECKING:
    from orchestrator.protocol.orders.driving import Leased
    from orchestrator.protocol.orders.hosts import Gpu, GpuUser, Hardware

_ANSWERS_S = 2.0
"""How long to wait for all holders of leases. Whoever asks for this document waits for some seconds."""
_GPU = "--query-gpu=uuid,name,utilization.gpu,memory.used,memory.total"


def inspect(host_dir: str) -> Hardware:
    """Return what the host has. What is not known is None."""
    uuids, why, _ = gpus.present()
    memory = host.memory_now()
    load: float | None
    try:
        load = os.getloadavg()[0]
    except OSError:
        load = None
    total, free = _disk(host_dir)
    found: list[Leased] = []
    until = time.monotonic() + _ANSWERS_S
    for name in gpu_lease.held():  # the kernel names the user, and the holder its run
        holder = gpu_lease.who(name, max(0.0, min(ANSWER_S, until - time.monotonic())))
        found.append(leased(name, holder.user or gpu_lease.owner(name), holder.answer))
    return {
        "cpus": os.cpu_count() or 0,
        "load": load,
        "memory_total_bytes": memory.get(b"MemTotal"),
        "memory_free_bytes": memory.get(b"MemAvailable"),
        "disk_total_bytes": total,
        "disk_free_bytes": free,
        "gpus": _cards(uuids) if uuids else [],
        "gpus_why": why,
        "leases": found,
    }


def _cards(uuids: list[str]) -> list[Gpu]:
    try:
        rows = {row[0]: row for row in gpus.ask(_GPU) if len(row) >= 5}
    except (OSError, subprocess.SubprocessError):
        rows = {}
    # The processes by the number of their GPU, with the run of ours that they are of
    users: dict[int, list[GpuUser]] = {}
    for process in gpus.in_use(uuids, None):
        pid = process["pid"] or 0
        user: GpuUser = {"pid": pid, "user": process["user"], "run": gpus.run_of(pid)}
        users.setdefault(process["gpu"], []).append(user)
    cards: list[Gpu] = []
    for index, uuid in enumerate(uuids):
        row = rows.get(uuid, [uuid, "", "", "", ""])
        used, total = gpus.number(row[-2]), gpus.number(row[-1])
        cards.append(
            {
                "index": index,
                "name": ", ".join(row[1:-3]),
                "utilization_percent": gpus.number(row[-3]),
                "memory_used_bytes": None if used is None else int(used) << 20,
                "memory_total_bytes": None if total is None else int(total) << 20,
                "processes": users.get(index, []),
                "uuid": uuid,
            }
        )
    return cards


def _disk(directory: str) -> tuple[int | None, int | None]:
    """Return the total and the free bytes of this directory's file system."""
    try:
        disk = os.statvfs(directory)
    except OSError:
        return None, None
    return disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize
