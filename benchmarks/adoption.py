"""How long a new coordinator takes to adopt running tasks: 64 on 16 hosts, over SSH, with real agents and shims.

All hosts are on this machine. So the figure includes the CPU of their sshds, agents and shims, but no round trips of a
real network. The new coordinator is asked ten times a second whether it has them all: that is how much the time may be
too long, and the few answers are in its CPU.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

from benchmarks import proc
from benchmarks.figure import Figure, NotMeasured
from benchmarks.lab import DEFAULT_TIMING, cluster_of, lab_of
from benchmarks.limits import LIMITS
from orchestrator.cli.handover import adopted
from orchestrator.core.errors import CoordinatorUnreachable
from orchestrator.head.api.client import Client
from tests.cluster.cluster import Cluster

HOSTS = 16
SLOTS = 4
REPEATS = 5

TIMEOUT_S = 120.0
_POLL_EVERY_S = 0.1


def measure() -> list[Figure]:
    """Measure a new coordinator after kill -9 of the old one, and a handover by `orch coordinator restart`."""
    killed: list[float] = []
    handed: list[float] = []
    cpu: list[float] = []
    with lab_of(HOSTS) as lab, cluster_of(lab) as cluster:
        hosts = [{**host, "slots": SLOTS} for host in cluster.hosts(HOSTS)]
        spec = cluster.spec(
            tasks=HOSTS * SLOTS,
            hosts=hosts,
            checkpoint=False,
            strategy="processes",
            script="idler.py",
            workdir=str(Path(__file__).parent / "workdir"),
            timing={**DEFAULT_TIMING, "start_after": "10m"},
        )
        cluster.ok("up", spec, timeout=600)
        before = _pids(cluster)
        for _ in range(REPEATS):
            cluster.kill_coordinator()
            killed.append(_adopt(cluster))
            cpu.append(proc.cpu_s(cluster.coordinator_pid))
            done = json.loads(cluster.ok("coordinator", "restart", "--json", timeout=TIMEOUT_S))
            handed.append(float(done["seconds"]))
            if done["tasks"] != HOSTS * SLOTS or done["restarts"]:
                raise NotMeasured(f"not all were taken up: {done}")
        if _pids(cluster) != before:
            raise NotMeasured("a task was restarted meanwhile")
    what = f"{HOSTS * SLOTS} tasks on {HOSTS} hosts"
    return [
        Figure(
            f"adoption of {what}, after kill -9",
            "s",
            LIMITS["adoption: until all tasks are adopted"],
            tuple(killed),
            "from the new process's start to the last task heard",
        ),
        Figure("CPU of the new coordinator until then", "s", LIMITS["adoption: CPU"], tuple(cpu)),
        Figure(
            "the same by orch coordinator restart, its own end included",
            "s",
            LIMITS["adoption: until all tasks are adopted"],
            tuple(handed),
        ),
    ]


def _adopt(cluster: Cluster) -> float:
    """Start a new coordinator, and return the seconds until it has heard of every task."""
    command = [sys.executable, "-P", "-m", "orchestrator.cli.main", "coordinator", "run"]
    client = Client(f"{cluster.env['ORCH_RUNTIME_DIR']}/coordinator.sock")
    began = time.monotonic()
    subprocess.Popen(command, env=cluster.env, stderr=_log(cluster), start_new_session=True)
    while time.monotonic() < began + TIMEOUT_S:
        try:
            epoch = client.get("/v1/coordinator")["epoch"]
            tasks, _, silent = adopted(client.get("/v1/status"), epoch)
        except CoordinatorUnreachable:
            tasks, silent = 0, ()
        if tasks == HOSTS * SLOTS and not silent:
            return time.monotonic() - began
        time.sleep(_POLL_EVERY_S)
    raise NotMeasured(f"not all tasks were taken up within {TIMEOUT_S:g} s")


def _pids(cluster: Cluster) -> list[int]:
    return [task["pid"] for task in cluster.run()["tasks"]]


def _log(cluster: Cluster) -> IO[str]:
    return (cluster.directory / "adoption.log").open("a")
