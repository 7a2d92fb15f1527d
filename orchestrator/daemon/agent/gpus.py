"""The GPUs of this host: which there are, and which processes compute on them.

It asks `nvidia-smi` and not a library, because that comes with the driver, and this code may run under any Python.
"""

from __future__ import annotations

import os
import subprocess

NVIDIA_SMI_S = 20.0

TYPE_CHECKING = False
if TYPE_CHECKING:
    from orchestrator.protocol.orders import GpuInUse


def present() -> list[str] | None:
    """Return the UUIDs of the GPUs in the driver's order; None where there is no driver."""
    rows = _ask("--query-gpu=uuid")
    return None if rows is None else [row[0] for row in rows]


def in_use(uuids: list[str], run: str | None) -> list[GpuInUse]:
    """Return the processes on these GPUs as `gpu` (its number), `pid`, `user`, `name`, without those of the run."""
    found: list[GpuInUse] = []
    for row in _ask("--query-compute-apps=pid,gpu_uuid,process_name") or []:
        if len(row) < 3 or not row[0].isdecimal() or row[1] not in uuids:
            continue
        pid = int(row[0])
        if run is not None and f"ORCH_RUN={run}".encode() in _environ(pid):
            continue
        found.append({"gpu": uuids.index(row[1]), "pid": pid, "user": _user(pid), "name": ", ".join(row[2:])})
    return found


def _ask(query: str) -> list[list[str]] | None:
    try:
        done = subprocess.run(
            ["nvidia-smi", query, "--format=csv,noheader"],
            capture_output=True,
            timeout=NVIDIA_SMI_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode:
        return None
    lines = done.stdout.decode("utf-8", "replace").splitlines()
    return [[cell.strip() for cell in line.split(",")] for line in lines if line.strip()]


def _user(pid: int) -> str | None:
    """Return the user of a process; None where it cannot be seen, as from within a container."""
    try:
        uid = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None
    try:
        import pwd

        return pwd.getpwuid(uid).pw_name
    except (ImportError, KeyError):
        return str(uid)


def _environ(pid: int) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []
