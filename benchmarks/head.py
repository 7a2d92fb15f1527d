"""What the head pays for each host: a start, a heartbeat, a status, a kill, memory and threads.

With simulated agents over real sockets the real coordinator serves up to 1,000 hosts; over SSH, as many as this machine
carries: each host is a network namespace with an sshd, an agent, a shim and a task. For heartbeats and starts CPU is
measured and not time, so that the load of other programs does not count. Simulated agents count the heartbeats that
they sent, since a busy machine delays some; over SSH one from each host in two seconds is assumed.
"""

from __future__ import annotations

import mmap
import os
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

from benchmarks import proc
from benchmarks.figure import Figure, NotMeasured, Point
from benchmarks.lab import DEFAULT_TIMING, cluster_of, lab_of
from benchmarks.length import is_long
from benchmarks.limits import LIMITS
from tests.cluster.cluster import Cluster
from tests.cluster.lab import Lab, LabHost

SIMULATED = (16, 96, 300, 1000)
OVER_SSH, OVER_SSH_LONG = (16, 96), (16, 96, 256)
KILL_HOSTS = 96
"""The limit of a kill over SSH is for so many."""
HOST_BYTES = 50 << 20
"""What an sshd, an agent, a shim and a task take of this machine's memory."""
WINDOWS = 3
WINDOW_S = 8.0
"""Four heartbeats of all hosts."""
SETTLE_S = 4.0
SHARED_THREADS = 12
"""Of the coordinator, whatever the number of hosts: those that decide, answer, keep the history, tell people, look for
silence, and do what blocks."""
TIMEOUT_S = 600.0


@dataclass(slots=True)
class Cost:
    """What so many hosts cost the head."""

    hosts: int
    up_ms: float = 0.0
    """CPU for one host, from `orch up` to the release of all tasks."""
    up_s: float = 0.0
    by_hand_s: float = 0.0
    """To start the same processes by plain ssh; 0 where the hosts are simulated."""
    beats_ms: list[float] = field(default_factory=list)
    """CPU for one host and heartbeat."""
    status_s: list[float] = field(default_factory=list)
    kill_s: float = 0.0
    rss_mb: float = 0.0
    threads: float = 0.0
    """For one host."""


def measure() -> list[Figure]:
    """Measure all sizes, simulated and over SSH."""
    sizes = OVER_SSH_LONG if is_long() else OVER_SSH
    simulated = [simulate(hosts) for hosts in SIMULATED]
    over_ssh = [over_real_ssh(hosts) for hosts in sizes if _has_room_for(hosts)]
    return [
        *_figures(simulated, "simulated"),
        *_figures(over_ssh, "SSH"),
    ]


def _has_room_for(n_hosts: int) -> bool:
    has_room = proc.available_bytes() > n_hosts * HOST_BYTES
    if not has_room:
        print(
            f"head: {n_hosts} SSH hosts are left out: they need {n_hosts * HOST_BYTES >> 30} GB",
            file=sys.stderr,
        )
    return has_room


def _figures(costs: list[Cost], how: str) -> list[Figure]:
    figures = []
    beat_limit_ms = LIMITS[f"head: heartbeat, {how}"]
    for cost in costs:
        at = f"at {cost.hosts} hosts ({how})"
        figures += [
            Figure(
                f"head CPU a host and heartbeat {at}",
                "ms",
                beat_limit_ms,
                tuple(cost.beats_ms),
                point=Point("CPU of the head for a host and heartbeat", how, cost.hosts),
            ),
            Figure(
                f"head CPU of `up` a host {at}",
                "ms",
                LIMITS["head: up"],
                (cost.up_ms,),
                f"{cost.up_s:.1f} s",
                point=Point("CPU of the head for a host that `orch up` starts on", how, cost.hosts),
            ),
        ]
        if cost.by_hand_s:
            what, over = f"`orch up` over plain ssh in parallel {at}", (cost.up_s / cost.by_hand_s,)
            note = f"by plain ssh: {cost.by_hand_s:.1f} s"
            figures.append(Figure(what, "x", LIMITS["head: up, over plain ssh"], over, note))
        if how == "SSH" or cost is costs[-1]:
            is_claim = how != "SSH" or cost.hosts <= KILL_HOSTS
            limit_s = LIMITS[f"head: kill, {how}"] if is_claim else inf
            figures.append(Figure(f"`orch kill` {at}", "s", limit_s, (cost.kill_s,)))
    smallest, largest = costs[0], costs[-1]
    at = f"at {largest.hosts} hosts ({how})"
    base = Figure("", "", 0.0, tuple(smallest.beats_ms)).measured
    growth = tuple(beat / base for beat in largest.beats_ms)
    return [
        *figures,
        Figure(f"growth of a heartbeat from {smallest.hosts} {at}", "x", LIMITS["head: growth"], growth),
        Figure(f"`orch status` {at}", "s", LIMITS["head: status"], tuple(largest.status_s)),
        Figure(f"coordinator, resident {at}", "MB", LIMITS["head: resident"], (largest.rss_mb,)),
        Figure(f"threads of the head a host {at}", "", LIMITS["head: threads a host"], (largest.threads,)),
    ]


def simulate(n_hosts: int, *, windows: int = WINDOWS) -> Cost:
    """Measure a run on so many simulated hosts."""
    with cluster_of(None) as cluster, agents() as (socket_path, count), _head(cluster, socket_path):
        hosts = [
            {"name": f"h{n}", "address": f"10.77.{n // 250}.{n % 250 + 1}", "slots": 1}
            for n in range(n_hosts)
        ]
        cost = Cost(n_hosts)
        _up(cluster, hosts, cost)
        _beats(cluster, cost, windows, count)
        _ask_and_kill(cluster, cost)
        return cost


def over_real_ssh(n_hosts: int, *, windows: int = WINDOWS) -> Cost:
    """Measure a run on so many hosts with a real sshd, agent, shim and task each."""
    with lab_of(n_hosts) as lab, cluster_of(lab) as cluster:
        cost = Cost(n_hosts)
        _up(cluster, cluster.hosts(n_hosts), cost)
        _beats(cluster, cost, windows, None)
        _ask_and_kill(cluster, cost)
        cost.by_hand_s = by_plain_ssh_s(lab)
        return cost


BY_HAND = """p=$(echo "$ORCH_HOST_DIR"/bundle/*.pyz); export PYTHONPATH="$p"
for what in daemon.agent.main daemon.shim.main runtime; do python3 -c "import orchestrator.$what"; done
"""
"""What a host starts for a task, one after the other: an agent, a shim, and the task with its runtime."""


def by_plain_ssh_s(lab: Lab) -> float:
    """Return how long it takes to start the same processes on all hosts by `ssh`, all hosts at once."""

    def one(host: LabHost) -> None:
        options = {"BatchMode": "yes", "GlobalKnownHostsFile": "none", "UserKnownHostsFile": lab.known_hosts}
        command = ["ssh", "-F", "none", *(f"-o{key}={value}" for key, value in options.items())]
        command += ["-i", str(lab.identity_file), "-p", str(host.port), f"{host.plan().user}@{host.address}"]
        subprocess.run([*command, BY_HAND], stdin=subprocess.DEVNULL, check=True)

    began = time.monotonic()
    with ThreadPoolExecutor(len(lab.hosts)) as threads:
        list(threads.map(one, lab.hosts))
    return time.monotonic() - began


def _up(cluster: Cluster, hosts: list[dict[str, object]], cost: Cost) -> None:
    spec = cluster.spec(
        tasks=len(hosts),
        hosts=hosts,
        script="idler.py",
        workdir=str(Path(__file__).parent / "workdir"),
        checkpoint=False,
        timing={**DEFAULT_TIMING, "start_after": "10m"},
        ports="20000-29999",
    )
    if cluster.coordinator() is None:
        cluster.ok("coordinator", "start")
    pid = cluster.coordinator_pid
    before, began = proc.cpu_s(pid), time.monotonic()
    cluster.ok("up", spec, timeout=TIMEOUT_S)
    cost.up_s = time.monotonic() - began
    cost.up_ms = (proc.cpu_s(pid) - before) * 1000 / cost.hosts


def _beats(cluster: Cluster, cost: Cost, windows: int, count: mmap.mmap | None) -> None:
    pid = cluster.coordinator_pid
    time.sleep(SETTLE_S)
    for _ in range(windows):
        before, began, reports = proc.cpu_s(pid), time.monotonic(), _counted(count)
        time.sleep(WINDOW_S)
        lasted = time.monotonic() - began
        beats = _counted(count) - reports if count is not None else cost.hosts * lasted / 2.0
        cost.beats_ms.append((proc.cpu_s(pid) - before) * 1000 / beats)
    cost.rss_mb = proc.rss_mb(pid)
    cost.threads = (len(os.listdir(f"/proc/{pid}/task")) - SHARED_THREADS) / cost.hosts


def _counted(count: mmap.mmap | None) -> int:
    return int(struct.unpack("Q", count[:8])[0]) if count is not None else 0


def _ask_and_kill(cluster: Cluster, cost: Cost) -> None:
    for _ in range(3):
        began = time.monotonic()
        cluster.ok("status", "--json")
        cost.status_s.append(time.monotonic() - began)
    began = time.monotonic()
    cluster.ok("kill", "t", timeout=TIMEOUT_S)
    cost.kill_s = time.monotonic() - began


@contextmanager
def agents() -> Iterator[tuple[str, mmap.mmap]]:
    """Yield the socket of a process of simulated agents, and the count of their reports."""
    with tempfile.TemporaryDirectory(prefix="orch-agents-") as directory:
        socket_path, counter = f"{directory}/agents.sock", f"{directory}/reports"
        Path(counter).write_bytes(bytes(8))
        with open(counter, "r+b") as file, mmap.mmap(file.fileno(), 8) as shared:
            command = [sys.executable, "-m", "benchmarks.simulated_agents", socket_path, counter]
            process = subprocess.Popen(command, stdout=subprocess.PIPE)
            try:
                assert process.stdout is not None
                process.stdout.readline()
                yield socket_path, shared
            finally:
                process.kill()
                process.wait()


@contextmanager
def _head(cluster: Cluster, socket_path: str) -> Iterator[None]:
    command = [sys.executable, "-m", "benchmarks.simulated_head", socket_path]
    process = subprocess.Popen(command, env=cluster.env)
    try:
        deadline = time.monotonic() + 30.0
        while cluster.coordinator() is None:
            if time.monotonic() > deadline or process.poll() is not None:
                raise NotMeasured("the coordinator does not start")
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.wait()
