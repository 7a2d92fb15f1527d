"""What an agent costs its host: CPU from its fork to the first heartbeat, and memory afterwards.

It is measured without psutil, which is loaded after the first heartbeat and costs extra. The login shell's exec belongs
to the same process, so the figure includes it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from benchmarks import proc
from benchmarks.figure import Figure, NotMeasured
from benchmarks.limits import LIMITS
from orchestrator.adapters import bundle
from orchestrator.adapters.local import LocalChannel, LocalTransport
from orchestrator.core.plan import HostPlan
from orchestrator.daemon.connection import bootstrap

REPEATS = 21
SETTLE_S = 0.3


def measure() -> list[Figure]:
    """Measure new agents under a Python without psutil, with the bundle pushed before."""
    python = _python_without_psutil()
    with tempfile.TemporaryDirectory(prefix="orch-bench-") as directory:
        _one(python, Path(directory))  # pushes the bundle
        samples = [_one(python, Path(directory)) for _ in range(REPEATS)]
    note = f"Python {'.'.join(map(str, sys.version_info[:2]))}, bundle pushed before"
    return [
        Figure(
            "agent, CPU to its first heartbeat",
            "ms",
            LIMITS["agent: CPU"],
            tuple(s[0] for s in samples),
            note,
        ),
        Figure(
            "agent, resident", "MB", LIMITS["agent: resident"], tuple(s[1] for s in samples), "without psutil"
        ),
    ]


def _one(python: str, host_dir: Path) -> tuple[float, float]:
    """Return (milliseconds of CPU, megabytes) of one agent."""
    host = HostPlan("here", transport="local", python=python)
    channel = LocalTransport().open(host, bootstrap.COMMAND)
    assert isinstance(channel, LocalChannel)
    try:
        pid = channel._child.pid
        code_only = replace(bundle.load(), psutil=None)
        started = bootstrap.start_agent(channel, host, code_only, heartbeat_s=60.0, host_dir=str(host_dir))
        frames = list(started.frames)
        while not any("report" in message for message, _ in frames):
            frames += started.decoder.feed(channel.read(1 << 16))
        cpu_ms = proc.thread_cpu_ms(pid)
        time.sleep(SETTLE_S)
        return cpu_ms, proc.rss_mb(pid)
    finally:
        channel.close()
        channel._child.wait(20)


def _python_without_psutil() -> str:
    """Return the base Python of our environment, which has no psutil, like a new host."""
    python = os.path.realpath(sys.executable)
    asked = subprocess.run([python, "-I", "-c", "import psutil"], capture_output=True, check=False)
    if asked.returncode == 0:
        raise NotMeasured(f"{python} has psutil installed")
    return python
