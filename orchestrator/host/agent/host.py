"""What an agent reports about its host: its identity, and its load."""

from __future__ import annotations

import os
import sys

from orchestrator.both import durable, hostdir, logind, process
from orchestrator.host.agent.traffic import Traffic
from orchestrator.host.system import cgroup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from orchestrator.host.agent.gpu_load import GpuLoads
    from orchestrator.protocol.hello import BootRequest, Hello
    from orchestrator.protocol.measures import PsutilFrom
    from orchestrator.protocol.reports import Sample


_NVIDIA = "/dev/nvidiactl"


class Host:
    """The host that the agent runs on."""

    def __init__(self, host_dir: str, bundle: str, request: BootRequest) -> None:
        self.host_dir = host_dir
        self.bundle = bundle
        self._request = request
        self._psutil: Any = None
        self.psutil_from: PsutilFrom = "none"
        """Where psutil comes from: bundle, host, or none (then /proc gives the basics)."""
        self._cpu: tuple[int, int] | None = None
        self._traffic = Traffic()
        self._gpus: GpuLoads | None = None

    def hello(self) -> Hello:
        """Return the first message to the coordinator."""
        system = os.uname()
        fits = self._request["psutil"] is not None and (
            self._request["psutil_platform"] == hostdir.platform()
        )
        there = fits and os.path.isdir(self._pushed_psutil())
        return {
            "digest": self._request["digest"],
            "python": ".".join(map(str, sys.version_info[:3])),
            "platform": hostdir.platform(),
            "hostname": system.nodename,
            "user": logind.user_name(),
            "boot_id": process.boot_id(),
            "host_dir": self.host_dir,
            "host_dir_device": os.stat(self.host_dir).st_dev,
            "psutil": "bundle" if there else "none",
            "psutil_wanted": fits and not there,
            "cgroup": cgroup.usable(),
            "warning": logind.ends_tasks(logind.user_name(), can_leave=cgroup.can_leave_login()),
        }

    def load_psutil(self) -> None:
        """Import psutil, or do without it. It takes 20 ms of CPU, and 70 ms if it must be compiled, once on a host."""
        if self._psutil is not None:
            return
        pushed = self._pushed_psutil()
        candidates: list[tuple[PsutilFrom, str]] = []
        if pushed and os.path.isdir(pushed):
            candidates.append(("bundle", pushed))
        # The directories of this Python's packages, which are not in our sys.path
        import site

        paths = list(site.getsitepackages())
        environment = os.path.dirname(os.path.dirname(sys.executable))
        if os.path.exists(os.path.join(environment, "pyvenv.cfg")):
            version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
            paths.insert(0, os.path.join(environment, "lib", version, "site-packages"))
        candidates += [("host", path) for path in paths if os.path.isdir(path + "/psutil")]
        for source, path in candidates:
            # It goes to the end of the path, so that nothing in that directory hides a standard module.
            sys.path.append(path)
            try:
                import psutil

                psutil.cpu_percent(None)
            except Exception:
                for name in [name for name in sys.modules if name.split(".")[0] == "psutil"]:
                    del sys.modules[name]
                continue
            finally:
                sys.path.remove(path)
            self._psutil, self.psutil_from = psutil, source
            return

    def listen_to_gpus(self) -> None:
        """Listen to what the GPUs do, where there is a driver; the import costs as much as a small agent."""
        if os.path.exists(_NVIDIA):
            from orchestrator.host.agent.gpu_load import GpuLoads

            self._gpus = GpuLoads()
            self._gpus.start()

    def unpack_psutil(self, archive: str) -> None:
        """Unpack a pushed archive. Call it in a fork, since it takes memory.

        Raises OSError if the disk refuses.
        """
        import shutil
        import zipfile

        target = self._pushed_psutil()
        temporary = f"{target}.{os.getpid()}.tmp"
        os.makedirs(temporary, mode=0o700, exist_ok=True)
        try:
            with zipfile.ZipFile(archive) as packed:
                for name in packed.namelist():
                    if name.startswith("psutil/") and ".." not in name:
                        packed.extract(name, temporary)
            if not os.path.isdir(target):
                durable.sync_tree(temporary)
                durable.place(temporary, target)
            os.unlink(archive)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def sample(self) -> Sample:
        """Return the `host` part of a report, with the CPU since the last sample. Unknown values are None."""
        if self._psutil is not None:
            cpu, memory = self._psutil.cpu_percent(None), self._psutil.virtual_memory().percent
        else:
            cpu, memory = self._by_proc()
        traffic = self._traffic.sample()
        try:
            disk = os.statvfs(self.host_dir)
            free: int | None = disk.f_bavail * disk.f_frsize
        except OSError:
            free = None
        return {
            "gpus": self._gpus.latest() if self._gpus is not None else [],
            "gpu_faults": self._gpus.faults() if self._gpus is not None else [],
            "cpu_percent": cpu,
            "memory_percent": memory,
            "memory_available_bytes": memory_now().get(b"MemAvailable"),
            "disk_free_bytes": free,
            "psutil": self.psutil_from,
            "disk_read_per_s": traffic[0],
            "disk_write_per_s": traffic[1],
            "network_in_per_s": traffic[2],
            "network_out_per_s": traffic[3],
        }

    def _by_proc(self) -> tuple[float | None, float | None]:
        before, self._cpu = self._cpu, _cpu_ticks()
        cpu = None
        if before and self._cpu and self._cpu[1] > before[1]:
            busy, total = self._cpu[0] - before[0], self._cpu[1] - before[1]
            cpu = round(100.0 * busy / total, 1)
        return cpu, _memory_percent()

    def _pushed_psutil(self) -> str:
        digest = self._request["psutil"]
        return os.path.join(self.host_dir, "psutil", digest) if digest else ""


def _cpu_ticks() -> tuple[int, int] | None:
    """Return the ticks since boot as (busy, total)."""
    try:
        with open("/proc/stat", "rb") as file:
            ticks = [int(field) for field in file.readline().split()[1:9]]
    except (OSError, ValueError):
        return None
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)  # ticks[3] is idle, ticks[4] waits for a disk


def memory_now() -> dict[bytes, int]:
    """Return the first lines of /proc/meminfo in bytes; nothing if they cannot be read."""
    try:
        with open("/proc/meminfo", "rb") as file:
            lines = [file.readline().partition(b":") for _ in range(3)]  # total, free, available
        return {name: int(rest.split()[0]) << 10 for name, _, rest in lines}
    except (OSError, ValueError, LookupError):
        return {}


def _memory_percent() -> float | None:
    memory = memory_now()
    try:
        return round(100.0 * (1 - memory[b"MemAvailable"] / memory[b"MemTotal"]), 1)
    except (LookupError, ZeroDivisionError):
        return None
