"""What agents say that are played: in the simulator, and in the benchmarks of many hosts."""

from __future__ import annotations

from orchestrator.protocol.hello import Greeting


def hello(name: str, boot_id: str) -> Greeting:
    """Return what the agent of a host says first."""
    return {
        "digest": "0" * 64,
        "python": "3.11.2",
        "platform": "linux-x86_64-glibc",
        "hostname": name,
        "user": "ml",
        "boot_id": boot_id,
        "host_dir": "/home/ml/.local/state/orch-host",
        "host_dir_device": 1,
        "psutil": "bundle",
        "psutil_wanted": False,
        "cgroup": True,
        "warning": None,
    }
