"""What an agent costs its host: CPU from its fork to the first heartbeat, and memory afterwards.

Most hosts have psutil, pushed by us or their own, and an agent imports it a minute after its start. So its
memory is measured without psutil and with it, also of the first agent on a host, which is pushed psutil and unpacks
it. The CPU is that of the whole process, to which the login shell's exec belongs. What the same Python needs to do
nothing stands beside it, measured by turns and started as an agent is, without `site`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from math import inf
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import pace, proc
from benchmarks.figure import Figure, NotMeasured
from benchmarks.limits import LIMITS
from orchestrator.core.plan import HostPlan
from orchestrator.head.code import bundle
from orchestrator.head.links import bootstrap
from orchestrator.head.reach.local import LocalChannel, LocalTransport
from orchestrator.protocol.limits import PSUTIL_AFTER_S
from tests.contract.agent_harness import push_psutil

REPEATS = 21
REPEATS_WITH_PSUTIL = 5
SETTLE_S = 0.3
PSUTIL_TIMEOUT_S = PSUTIL_AFTER_S + 30.0


def measure() -> list[Figure]:
    """Measure new agents under a Python without psutil, with the bundle pushed before."""
    python = _python_without_psutil()
    with tempfile.TemporaryDirectory(prefix="orch-bench-") as directory:
        _one(python, Path(directory))  # pushes the bundle
        pairs = [(pace.bare_ms(python), _one(python, Path(directory))) for _ in range(REPEATS)]
        first = _with_psutil(python, Path(directory), 1)
        later = _with_psutil(python, Path(directory), REPEATS_WITH_PSUTIL)
    bare_ms, samples = median(pair[0] for pair in pairs), [pair[1] for pair in pairs]
    note = f"Python {'.'.join(map(str, sys.version_info[:2]))}, bundle pushed before; to do nothing: {bare_ms:.1f} ms"
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
        Figure(
            "agent, resident with psutil",
            "MB",
            LIMITS["agent: resident"],
            later,
            f"{PSUTIL_AFTER_S:g} s after its start and from then on",
        ),
        Figure("the same, of the first on a host", "MB", inf, first, "which has unpacked psutil"),
    ]


def _one(python: str, host_dir: Path) -> tuple[float, float]:
    """Return (milliseconds of CPU, megabytes) of one agent without psutil."""
    code_only = replace(bundle.load(), psutil=None)
    with _agent(python, host_dir, code_only, heartbeat_s=60.0) as (pid, reports):
        next(reports)
        cpu_ms = proc.cpu_s(pid) * 1000
        time.sleep(SETTLE_S)
        return cpu_ms, proc.rss_mb(pid)


def _with_psutil(python: str, host_dir: Path, count: int) -> tuple[float, ...]:
    """Return the megabytes of agents that have loaded psutil. They wait for it at the same time."""
    with ExitStack() as stack:
        agents = [
            stack.enter_context(_agent(python, host_dir, bundle.load(), heartbeat_s=1.0))
            for _ in range(count)
        ]
        give_up_at = time.monotonic() + PSUTIL_TIMEOUT_S
        for _, reports in agents:
            while next(reports)["host"]["psutil"] == "none":
                if time.monotonic() > give_up_at:
                    raise NotMeasured(f"an agent has no psutil after {PSUTIL_TIMEOUT_S:.0f} s")
        time.sleep(SETTLE_S)
        return tuple(proc.rss_mb(pid) for pid, _ in agents)


@contextmanager
def _agent(
    python: str, host_dir: Path, code: bundle.Bundle, *, heartbeat_s: float
) -> Iterator[tuple[int, Iterator[Mapping[str, Any]]]]:
    """Yield the pid of a new agent, and its reports as they come."""
    host = HostPlan("here", transport="local", python=python)
    channel = LocalTransport().open(host, bootstrap.COMMAND)
    assert isinstance(channel, LocalChannel)
    try:
        started = bootstrap.start_agent(channel, host, code, heartbeat_s=heartbeat_s, host_dir=str(host_dir))
        if started.hello["psutil_wanted"]:
            push_psutil(channel)
        yield channel._child.pid, _reports(channel, started)
    finally:
        channel.close()
        channel._child.wait(20)


def _reports(channel: LocalChannel, started: bootstrap.Started) -> Iterator[Mapping[str, Any]]:
    frames = list(started.frames)
    while True:
        yield from (message["report"] for message, _ in frames if "report" in message)
        data = channel.read(1 << 16)
        if not data:
            raise NotMeasured(f"the agent ended: {channel.stderr_tail()}")
        frames = started.decoder.feed(data)


def _python_without_psutil() -> str:
    """Return the base Python of our environment, which has no psutil, like a new host."""
    python = os.path.realpath(sys.executable)
    asked = subprocess.run([python, "-I", "-c", "import psutil"], capture_output=True, check=False)
    if asked.returncode == 0:
        raise NotMeasured(f"{python} has psutil installed")
    return python
