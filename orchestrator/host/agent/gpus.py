"""The GPUs of this host: which there are, and which processes compute on them.

It asks `nvidia-smi` and not a library, because that comes with the driver, and this code may run under any Python.
"""

from __future__ import annotations

import os
import subprocess

from orchestrator.both import logind, process
from orchestrator.host.system import gpu_lease

NVIDIA_SMI_S = 20.0

_OTHER_DRIVERS = ("/dev/nvidiactl", "/dev/dxg", "/dev/nvgpu", "/dev/nvhost-gpu", "/dev/kfd")
"""Devices of NVIDIA's drivers (of a server, of WSL, of a Jetson), and of AMD's."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from orchestrator.protocol.orders.hosts import GpuInUse


def present() -> tuple[list[str] | None, str | None, dict[str, int]]:
    """Return the UUIDs of the GPUs in the driver's order, else None and why there is none; and the MIG instances.

    These are the UUIDs of the parts into which GPUs are divided, each with the index of its GPU.
    The first two are None if unknown: nvidia-smi does not answer or is not on the PATH although a driver is there,
    or the GPUs are another vendor's.
    """
    uuids: list[str] = []
    instances: dict[str, int] = {}
    try:
        # `GPU 0: NVIDIA A100 (UUID: GPU-5c89…)`, and below it `  MIG 3g.20gb Device 0: (UUID: MIG-c6d4…)`
        for line in _output("-L"):
            uuid = line.rpartition("(UUID: ")[2].partition(")")[0].strip()
            if line.lstrip().startswith("MIG ") and uuids:
                instances[uuid] = len(uuids) - 1
            elif line.startswith("GPU ") and uuid != line:
                uuids.append(uuid)
        return uuids, None, instances
    except FileNotFoundError:
        others = any(os.path.exists(path) for path in _OTHER_DRIVERS)
        return None, None if others else "there is no nvidia-smi and no device of a GPU", {}
    except subprocess.CalledProcessError as e:
        lines = [line for line in e.stdout.decode("utf-8", "replace").splitlines() if line.strip()]
        why = f"nvidia-smi says: {lines[0].strip()}" if lines else f"nvidia-smi fails ({e.returncode})"
        return None, why, {}
    except (OSError, subprocess.TimeoutExpired):
        return None, None, {}


def numbers(names: list[int | str]) -> list[int | str]:
    """Return the number of each GPU here that is named by its UUID; what else is named stays as it is."""
    uuids = present()[0] or []
    return [uuids.index(name) if isinstance(name, str) and name in uuids else name for name in names]


def in_use(uuids: list[str], run: str | None) -> list[GpuInUse]:
    """Return the processes on these GPUs as `gpu` (its number), `pid`, `user`, `name`, without those of the run."""
    processes: list[GpuInUse] = []
    try:
        rows = ask("--query-compute-apps=pid,gpu_uuid,process_name")
    except (OSError, subprocess.SubprocessError):
        return []
    for row in rows:
        if len(row) < 3 or not row[0].isdecimal() or row[1] not in uuids:
            continue
        pid = int(row[0])
        if run is not None and run_of(pid) == run:
            continue
        uid = process.owner(pid)  # None within a container
        user = None if uid is None else logind.user_name(uid)
        processes.append({"gpu": uuids.index(row[1]), "pid": pid, "user": user, "name": ", ".join(row[2:])})
    return processes


def leased(uuids: list[str]) -> list[GpuInUse]:
    """Return the leases of these GPUs that other users hold, like `in_use`. The kernel names the user, and no pid."""
    owners = enumerate(gpu_lease.owner(gpu) for gpu in range(len(uuids)))
    others = [(gpu, user) for gpu, user in owners if user not in (None, logind.user_name())]
    return [{"gpu": gpu, "pid": None, "user": user, "name": "it holds the lease"} for gpu, user in others]


def ask(query: str) -> list[list[str]]:
    """Return the table that nvidia-smi prints. Raises OSError, CalledProcessError or TimeoutExpired."""
    lines = _output(query, "--format=csv,noheader")
    return [[cell.strip() for cell in line.split(",")] for line in lines]


def _output(*arguments: str) -> list[str]:
    done = subprocess.run(
        ["nvidia-smi", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=NVIDIA_SMI_S,
        check=True,
    )
    return [line for line in done.stdout.decode("utf-8", "replace").splitlines() if line.strip()]


def run_of(pid: int) -> str | None:
    """Return the run that a process belongs to, by its marker; None if it has none, or we may not read it."""
    run = process.environment(pid).get(b"ORCH_RUN")
    return None if run is None else run.decode("utf-8", "replace")
