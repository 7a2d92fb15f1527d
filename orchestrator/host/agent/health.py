"""What this host is like for a run: its limits, its disks, its clock, and the proxies of its environment."""

from __future__ import annotations

import os
import resource
import tempfile
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from orchestrator.protocol.orders import Directory, GpuState, Health

PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")
"""The variables by which gRPC finds a proxy, in its order. It does not read those in capitals."""

_OUTGOING = "/proc/sys/net/ipv4/ip_local_port_range"
_DIRECTORY_S = 5.0

_SLOWED = {
    "its temperature": "clocks_throttle_reasons.hw_thermal_slowdown",
    "its power supply": "clocks_throttle_reasons.hw_power_brake_slowdown",
}


def of_now(ports: list[int], free: int, busy: list[int]) -> Health:
    """Return what can be told without a look at a disk. The ports: where it listens, how many are free, who is not."""
    return {
        "time": time.time(),
        "reached_at": reached_at(),
        "ports": ports,
        "ports_free": free,
        "ports_busy": busy,
        "outgoing": outgoing(),
        "proxies": proxies(),
        "open_files": open_files(),
        "directories": [],
    }


def whole(told: Health, host_dir: str, more: list[str], *, gpus: bool) -> Health:
    """Return the same with the directories, and with the GPUs where they are asked for. In a fork: both may hang."""
    told = {**told, "directories": directories(host_dir, more)}
    return {**told, "gpus": _gpus()} if gpus else told


def _gpus() -> list[GpuState]:
    """Return the GPUs in the driver's order; what this driver does not know is left out."""
    import subprocess

    from orchestrator.host.agent import gpus

    def column(field: str) -> list[str]:
        try:
            return [row[0] for row in gpus.ask(f"--query-gpu={field}")]
        except (OSError, subprocess.SubprocessError):
            return []

    names = column("name")
    errors = column("ecc.errors.uncorrected.volatile.total")
    slowed: list[str | None] = [None] * len(names)
    for why, field in _SLOWED.items() if names else ():
        for index, said in enumerate(column(field)[: len(names)]):
            slowed[index] = why if said == "Active" else slowed[index]
    return [
        {
            "name": name,
            "ecc_errors": int(errors[i]) if i < len(errors) and errors[i].isdecimal() else None,
            "slowed": slowed[i],
        }
        for i, name in enumerate(names)
    ]


def reached_at() -> str | None:
    """Return the address at which SSH has reached this host, as sshd has told it; None of another transport."""
    words = os.environ.get("SSH_CONNECTION", "").split()
    return words[2] if len(words) == 4 else None


def proxies() -> dict[str, str]:
    """Return the proxies that gRPC would use here, without user and password."""
    found = {name: os.environ.get(name, "") for name in PROXIES}
    return {name: value.rpartition("@")[2] for name, value in found.items() if value}


def open_files() -> int | None:
    """Return how many files a task may have open at once; None without a limit."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return None if limit == resource.RLIM_INFINITY else limit


def outgoing() -> tuple[int, int] | None:
    """Return the range of ports of outgoing connections; None where it cannot be told."""
    try:
        with open(_OUTGOING, encoding="ascii") as file:
            first, last = map(int, file.read().split())
    except (OSError, ValueError):
        return None
    return first, last


def directories(host_dir: str, more: list[str]) -> list[Directory]:
    """Return how ours, the home, the temporary one and more directories are. In a fork: they may hang."""
    from orchestrator.host.system.patience import within

    paths = dict.fromkeys([host_dir, os.path.expanduser("~"), tempfile.gettempdir(), *more])
    return [within(_DIRECTORY_S, lambda path=path: _directory(path), _hangs(path)) for path in paths]  # type: ignore[misc]


def _hangs(path: str) -> Directory:
    why = f"it has not answered for {_DIRECTORY_S:.0f} s"
    return {
        "path": path,
        "why": why,
        "free_bytes": None,
        "free_files": None,
        "exists": False,
        "read_only": False,
        "noexec": False,
    }


def _directory(path: str) -> Directory:
    there = path
    while there != os.path.dirname(there) and not os.path.exists(there):
        there = os.path.dirname(there)  # what is missing is made there
    try:
        disk = os.statvfs(there)
    except OSError as e:
        return {**_hangs(path), "why": e.strerror}
    return {
        "path": path,
        "why": None,
        "free_bytes": disk.f_bavail * disk.f_frsize,
        "free_files": disk.f_favail if disk.f_files else None,  # some file systems do not count them
        "exists": there == path,
        "read_only": bool(disk.f_flag & os.ST_RDONLY),
        "noexec": bool(disk.f_flag & os.ST_NOEXEC),
    }
