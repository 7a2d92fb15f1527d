"""Facts about this host that matter to a run: limits, disks, clock, GPUs, and proxies of the environment."""

from __future__ import annotations

import os
import resource
import tempfile
import time
from functools import partial

from orchestrator.both import logind
from orchestrator.host.agent.host import memory_now
from orchestrator.host.system import cgroup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from orchestrator.protocol.orders.hosts import Directory, GpuState, Health, Owner

PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")
"""The variables that gRPC reads to find a proxy, in its order. It ignores variables in capitals."""

_OUTGOING = "/proc/sys/net/ipv4/ip_local_port_range"
_DIRECTORY_S = 5.0
_WRITTEN_BYTES = 16 << 20
_ANCESTORS_MAX = 8
_XIDS_MAX = 16
_RECORDS_MAX = 50_000

_SLOWED = {
    "its temperature": "clocks_throttle_reasons.hw_thermal_slowdown",
    "its power supply": "clocks_throttle_reasons.hw_power_brake_slowdown",
}


def facts_now(ports: list[int], free: int, busy: list[int]) -> Health:
    """Return the facts that need no disk, with the listening ports, the number of free ones, and the busy ones."""
    memory = memory_now()
    return {
        "time": time.time(),
        "reached_at": reached_at(),
        "ports": ports,
        "ports_free": free,
        "ports_busy": busy,
        "outgoing": outgoing(),
        "proxies": proxies(),
        "open_files": limit(resource.RLIMIT_NOFILE),
        "processes": None if os.geteuid() == 0 else limit(resource.RLIMIT_NPROC),
        "startups": startups(),
        "uid": os.geteuid(),
        "memory_bytes": memory.get(b"MemTotal"),
        "memory_free_bytes": memory.get(b"MemAvailable"),
        "directories": [],
    }


def whole(
    facts: Health,
    host_dir: str,
    more: list[str],
    *,
    gpus: bool,
    writes: str | None = None,
    group: str | None = None,
) -> Health:
    """Return the facts with directories, and with GPUs if wanted. It runs in a fork, since both may hang.

    `writes`: a checkpoint directory whose write speed is measured. `group`: who may write into one besides us.
    """
    facts = {**facts, "directories": directories(host_dir, more, group), "cgroups": cgroup.usable()}
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        facts["visible_gpus"] = os.environ["CUDA_VISIBLE_DEVICES"]
    if writes is not None:
        facts["save_bytes"] = save_bytes(writes)
        facts["write_bytes_per_s"] = write_speed(writes)
    return {**facts, "gpus": _gpus()} if gpus else facts


def _gpus() -> list[GpuState]:
    """Return the GPUs in the driver's order. Fields that the driver does not know are null."""
    import subprocess

    from orchestrator.host.agent import gpu_load, gpus
    from orchestrator.host.system.kernel_log import KERNEL_LOG, KernelLog

    def column(field: str) -> list[str]:
        try:
            return [row[0] for row in gpus.ask(f"--query-gpu={field}")]
        except (OSError, subprocess.SubprocessError):
            return []

    names, uuids = column("name"), column("uuid")
    if not names:
        return []
    buses = [gpu_load.bus(text) for text in column("pci.bus_id")]
    xids = dict.fromkeys(gpu_load.xids(KernelLog(KERNEL_LOG, since_boot=True), _RECORDS_MAX))
    errors = column("ecc.errors.uncorrected.volatile.total")
    slowed: list[str | None] = [None] * len(names)
    for why, field in _SLOWED.items():
        for index, state in enumerate(column(field)[: len(names)]):
            slowed[index] = why if state == "Active" else slowed[index]
    return [
        {
            "name": name,
            **({"uuid": uuids[i]} if i < len(uuids) else {}),  # type: ignore[typeddict-item]
            "ecc_errors": int(errors[i]) if i < len(errors) and errors[i].isdecimal() else None,
            "slowed": slowed[i],
            "xids": [xid for where, xid in xids if buses[i : i + 1] == [where]][:_XIDS_MAX],
        }
        for i, name in enumerate(names)
    ]


def reached_at() -> str | None:
    """Return this host's address on the SSH connection, from sshd; None under another transport."""
    words = os.environ.get("SSH_CONNECTION", "").split()
    return words[2] if len(words) == 4 else None


def proxies() -> dict[str, str]:
    """Return the proxies that gRPC would use here, without user and password."""
    values = {name: os.environ.get(name, "") for name in PROXIES}
    return {name: value.rpartition("@")[2] for name, value in values.items() if value}


def limit(resource_: int) -> int | None:
    """Return the hard limit of a resource; None without one."""
    hard = resource.getrlimit(resource_)[1]
    return None if hard == resource.RLIM_INFINITY else hard


def startups(pid: int = 0, proc: str = "/proc") -> int | None:
    """Return how many logins in progress our parent sshd accepts before it drops some; None if its title does not say.

    The title of a listening sshd is `sshd: /usr/sbin/sshd -D [listener] 0 of 10-100 startups`.
    """
    pid = pid or os.getppid()
    for _ in range(_ANCESTORS_MAX):
        try:
            with open(f"{proc}/{pid}/cmdline", "rb") as file:
                words = file.read().replace(b"\0", b" ").split()
            with open(f"{proc}/{pid}/stat", "rb") as file:
                pid = int(file.read().rpartition(b")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return None
        if words[-1:] == [b"startups"] and words[-2].partition(b"-")[0].isdigit():
            return int(words[-2].partition(b"-")[0])
    return None


def outgoing() -> tuple[int, int] | None:
    """Return the range of local ports of outgoing connections; None if unknown."""
    try:
        with open(_OUTGOING, encoding="ascii") as file:
            first, last = map(int, file.read().split())
    except (OSError, ValueError):
        return None
    return first, last


def directories(host_dir: str, more: list[str], group: str | None = None) -> list[Directory]:
    """Return the state of the agent's, the home, the temporary and `more` directories. In a fork: they may hang."""
    from orchestrator.host.system.patience import all_within

    states = {
        path: _hangs(path) for path in (host_dir, os.path.expanduser("~"), tempfile.gettempdir(), *more)
    }

    def inspect(path: str) -> None:
        states[path] = _directory(path, group)

    all_within(_DIRECTORY_S, [partial(inspect, path) for path in states])
    return list(states.values())


def save_bytes(directory: str) -> int | None:
    """Return the size of the newest checkpoint in a directory; None if none is found."""
    from orchestrator.both.within import Tree
    from orchestrator.checkpoints import lineage

    try:
        with Tree(directory) as tree:
            units = (unit for origin in lineage.origins(tree) for unit in origin.contents().units)
            newest = next(units, None)
    except OSError:
        return None
    return None if newest is None else newest.bytes


def write_speed(directory: str) -> float | None:
    """Return how many bytes a second can be written and synced; None if that cannot be tried.

    If it takes longer than its deadline, the result is an upper bound.
    """
    from orchestrator.both.within import Tree
    from orchestrator.host.system.patience import within

    def write() -> float:
        name = f".orch-speed-{os.uname().nodename}-{os.getpid()}"
        with (
            Tree(directory) as tree,
            open(tree.opened(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file,
        ):
            tree.remove(name)  # whatever becomes of this process, nothing is left
            part, began_at = os.urandom(1 << 20), time.monotonic()
            for _ in range(_WRITTEN_BYTES >> 20):
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
            return _WRITTEN_BYTES / max(time.monotonic() - began_at, 0.001)

    try:
        return within(_DIRECTORY_S / 2, write, _WRITTEN_BYTES / (_DIRECTORY_S / 2))
    except OSError:
        return None


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
        "owner": None,
        "own": None,
        "nfs": [],
        "others": None,
    }


def _directory(path: str, group: str | None) -> Directory:
    there = path
    while there != os.path.dirname(there) and not os.path.exists(there):
        there = os.path.dirname(there)  # the missing directories will be made there
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
        "owner": _owner(path),
        "own": _owner(os.path.join(path, ".orch")),
        "nfs": nfs_options(os.path.realpath(there)),
        "others": others_in(path, group),
    }


def others_in(directory: str, group: str | None) -> str | None:
    """Return who else may write into a directory, beside us, root and that group; None: nobody, or it is not known."""
    from orchestrator.both.within import who_else_writes

    try:
        return who_else_writes(directory, group)
    except OSError:
        return None


def _owner(path: str) -> Owner | None:
    try:
        seen = os.stat(path)
    except OSError:
        return None
    user = logind.user_name(seen.st_uid)
    writable = os.access(path, os.W_OK | os.X_OK)
    return {"uid": seen.st_uid, "user": user, "mode": seen.st_mode & 0o7777, "writable": writable}


def nfs_options(path: str, mounts: str = "/proc/self/mountinfo") -> list[str]:
    """Return the mount options of a real path on NFS; empty on any other file system."""
    longest, nfs = "", list[str]()
    try:
        with open(mounts, encoding="utf-8", errors="surrogateescape") as file:
            lines = file.read().splitlines()
    except OSError:
        return []
    for line in lines:
        left, _, right = line.partition(" - ")
        words, of_system = left.split(" "), right.split(" ")
        if len(words) < 6 or len(of_system) < 3:
            continue
        place = words[4].replace("\\040", " ")
        inside = path == place or path.startswith(place.rstrip("/") + "/")
        if inside and len(place) >= len(longest):  # of two mounts on one place, the later one is seen
            longest = place
            options = f"{words[5]},{of_system[2]}".split(",")
            nfs = options if of_system[0] in ("nfs", "nfs4") else []
    return nfs[:64]
