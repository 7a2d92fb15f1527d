"""What the head pays for each host: a start, a heartbeat, a status, a kill, memory and threads.

With simulated agents over real sockets the real coordinator serves up to 1,000 hosts, at which the limit of a heartbeat
is set; over SSH, as many as this machine's memory holds: each host is a network namespace with an sshd, an agent, a
shim and a task. CPU is counted and not time, so that the load of others does not count. Simulated agents count the
heartbeats that they really send; over SSH every host must have been heard within two heartbeats of the window's end,
else nothing is said.

`orch up` over SSH is measured in two ways: on hosts that hold nothing of orch yet, and with a new coordinator on hosts
that hold its code. Each coordinator puts the compiled code for hosts together once. By hand, plain
`ssh` starts the same processes on all hosts at once, in the first case after it has brought the code. All hosts share
this machine's cores, so both ways pay for what really runs on the hosts. With many hosts that takes a minute, and the
head's CPU then holds the reports of those that are ready and wait for the others.
"""

from __future__ import annotations

import mmap
import os
import shutil
import sqlite3
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from importlib.util import MAGIC_NUMBER
from math import inf
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks import proc
from benchmarks.figure import Figure, NotMeasured, Point
from benchmarks.lab import DEFAULT_TIMING, cluster_of, lab_of
from benchmarks.limits import LIMITS
from benchmarks.machine import claim_memory
from orchestrator.head.code import bundle
from orchestrator.head.code.compiled import compiled_for
from tests.cluster.cluster import Cluster, wait_until
from tests.cluster.lab import Lab, LabHost

SIMULATED = (16, 96, 300, 1000)
OVER_SSH = (16, 96, 256)
KILL_HOSTS = 96
"""The limit of a kill over SSH is for so many."""
HOST_BYTES = 50 << 20
"""What an sshd, an agent, a shim and a task take of this machine's memory."""
STARTS = {16: 5, 96: 3, 256: 2}
"""How often starts by `orch up` and by plain ssh are measured in turns, by the number of hosts."""
WINDOWS = 3
HEARTBEAT_S = 2.0
WINDOW_S = 4 * HEARTBEAT_S
SETTLE_S = 4.0
SHARED_THREADS = 12
"""Of the coordinator, whatever the number of hosts: those that decide, answer, keep the history, tell people, look for
silence, and do what blocks."""
TIMEOUT_S = 600.0


class Start(NamedTuple):
    """A start on all hosts."""

    head_ms: float
    """CPU of the head for one host, from `orch up` to the release of all tasks."""
    took_s: float
    by_hand_s: float
    """To start the same processes by plain ssh; 0 where the hosts are simulated."""


@dataclass(slots=True)
class Cost:
    """What so many hosts cost the head."""

    hosts: int
    first_ups: list[Start] = field(default_factory=list)
    """On hosts that hold nothing of orch; none where the hosts are simulated."""
    ups: list[Start] = field(default_factory=list)
    beats_ms: list[float] = field(default_factory=list)
    """CPU for one host and heartbeat."""
    status_s: list[float] = field(default_factory=list)
    kill_s: list[float] = field(default_factory=list)
    rss_mb: float = 0.0
    threads: float = 0.0
    """For one host."""


def measure() -> list[Figure]:
    """Measure all sizes, simulated and over SSH."""
    sizes = _that_fit(OVER_SSH)
    return [
        *_figures([simulate(hosts) for hosts in SIMULATED], "simulated"),
        *_figures([over_real_ssh(hosts) for hosts in sizes], "SSH"),
    ]


def _that_fit(sizes: Sequence[int]) -> list[int]:
    """Return the numbers of hosts that this machine can hold. NotMeasured: not even two, and growth says nothing."""
    free = proc.available_bytes()
    fitting = [n_hosts for n_hosts in sizes if n_hosts * HOST_BYTES <= free]
    if len(fitting) < 2:
        needed = sizes[1] * HOST_BYTES
        raise NotMeasured(
            f"{sizes[1]} SSH hosts need {needed >> 30} GB of memory, and {free >> 30} GB are free"
        )
    return fitting


def _figures(costs: list[Cost], how: str) -> list[Figure]:
    figures = []
    beat_limit_ms = LIMITS[f"head: heartbeat, {how}"]
    for cost in costs:
        at = f"at {cost.hosts} hosts ({how})"
        has_limit = how == "SSH" or cost is costs[-1]
        figures += [
            Figure(
                f"head CPU a host and heartbeat {at}",
                "ms",
                beat_limit_ms if has_limit else inf,
                tuple(cost.beats_ms),
                point=Point("CPU of the head for a host and heartbeat", how, cost.hosts),
            ),
            *_start_figures("the first `up`", cost.first_ups, how, cost.hosts),
            *_start_figures("`up`", cost.ups, how, cost.hosts),
        ]
        if has_limit:
            is_claim = how != "SSH" or cost.hosts <= KILL_HOSTS
            limit_s = LIMITS[f"head: kill, {how}"] if is_claim else inf
            figures.append(Figure(f"`orch kill` {at}", "s", limit_s, tuple(cost.kill_s)))
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


def _start_figures(what: str, starts: Sequence[Start], how: str, hosts: int) -> Iterator[Figure]:
    if not starts:
        return
    at = f"at {hosts} hosts ({how})"
    yield Figure(
        f"head CPU of {what} a host {at}",
        "ms",
        LIMITS["head: up"],
        tuple(start.head_ms for start in starts),
        f"{median(start.took_s for start in starts):.1f} s",
        point=Point("CPU of the head for a host that `orch up` starts on", f"{what}, {how}", hosts),
    )
    if starts[0].by_hand_s:
        yield Figure(
            f"{what} over plain ssh in parallel {at}",
            "x",
            LIMITS["head: up, over plain ssh"],
            tuple(start.took_s / start.by_hand_s for start in starts),
            f"by plain ssh: {median(start.by_hand_s for start in starts):.1f} s",
        )


def simulate(n_hosts: int, *, windows: int = WINDOWS) -> Cost:
    """Measure a run on so many simulated hosts."""
    with cluster_of(None) as cluster, agents() as (socket_path, count), _head(cluster, socket_path):
        hosts = [
            {"name": f"h{n}", "address": f"10.77.{n // 250}.{n % 250 + 1}", "slots": 1}
            for n in range(n_hosts)
        ]
        cost = Cost(n_hosts)
        cost.ups.append(Start(*_up(cluster, hosts), by_hand_s=0.0))
        _beats(cluster, cost, windows, count)
        _ask_and_kill(cluster, cost)
        return cost


def over_real_ssh(n_hosts: int, *, windows: int = WINDOWS) -> Cost:
    """Measure a run on so many hosts with a real sshd, agent, shim and task each."""
    with lab_of(n_hosts) as lab, cluster_of(lab) as cluster:
        cost, hosts = Cost(n_hosts), cluster.hosts(n_hosts)
        for number in range(STARTS.get(n_hosts, 1)):
            _settle(n_hosts)
            first = _up(cluster, hosts)
            if number == 0:
                _beats(cluster, cost, windows, None)
            _ask_and_kill(cluster, cost)
            cluster.ok("coordinator", "stop")
            _settle(n_hosts)
            cost.first_ups.append(Start(*first, by_plain_ssh_s(lab, BRING + BY_HAND, _code())))
            _settle(n_hosts)
            second = _up(cluster, hosts)
            cluster.ok("kill", "t", timeout=TIMEOUT_S)
            cluster.ok("coordinator", "stop")
            _settle(n_hosts)
            cost.ups.append(Start(*second, by_plain_ssh_s(lab, BY_HAND)))
            for host in lab.hosts:
                _empty(host.host_dir)
        return cost


def _settle(n_hosts: int) -> None:
    """Wait until the agents have ended with their connections; then see that no start pays for the machine's memory."""
    time.sleep(SETTLE_S)
    claim_memory(n_hosts * HOST_BYTES)


def _empty(directory: Path) -> None:
    for path in directory.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


BRING = 'cat > "$ORCH_HOST_DIR"/brought; '
"""What a host does first that holds no code yet."""
BY_HAND = """p=$(echo "$ORCH_HOST_DIR"/bundle/*.pyz); export PYTHONPATH="$p"
for what in host.agent.main host.shim.main runtime; do python3 -c "import orchestrator.$what" || exit; done
"""
"""What a host starts for a task, one after the other: an agent, a shim, and the task with its runtime."""


def _code() -> bytes:
    """Return orch's code as a host like this machine gets it."""
    code = compiled_for(MAGIC_NUMBER.hex(), bundle.load())
    assert code is not None  # it is this Python's own byte code
    return code.data


def by_plain_ssh_s(lab: Lab, script: str, stdin: bytes = b"") -> float:
    """Return how long it takes to run a script on all hosts by `ssh`, all at once."""
    options = {"BatchMode": "yes", "GlobalKnownHostsFile": "none", "UserKnownHostsFile": lab.known_hosts}
    command = ["ssh", "-F", "none", *(f"-o{key}={value}" for key, value in options.items())]

    def one(host: LabHost) -> None:
        place = ["-i", str(lab.identity_file), "-p", str(host.port), f"{host.plan().user}@{host.address}"]
        subprocess.run([*command, *place, script], input=stdin, check=True)

    began = time.monotonic()
    with ThreadPoolExecutor(len(lab.hosts)) as threads:
        list(threads.map(one, lab.hosts))
    return time.monotonic() - began


def _up(cluster: Cluster, hosts: list[dict[str, object]]) -> tuple[float, float]:
    """Start the run, up to the release of its tasks: `orch up` itself also waits for their first step.

    Return the head's CPU in milliseconds a host, and the seconds that it took.
    """
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
    run_id = cluster.ok("up", spec, "--detach", timeout=TIMEOUT_S).strip()
    journal = cluster.directory / "state" / "journal.db"
    # The journal is read, since the head would pay for each question
    with closing(sqlite3.connect(f"file:{journal}?mode=ro", uri=True)) as db:
        query = "SELECT count(*) FROM events WHERE run_id = ? AND kind = 'running'"
        wait_until(
            lambda: bool(db.execute(query, (run_id,)).fetchone()[0]), "the tasks' release", timeout=TIMEOUT_S
        )
    took_s = time.monotonic() - began
    return (proc.cpu_s(pid) - before) * 1000 / len(hosts), took_s


def _beats(cluster: Cluster, cost: Cost, windows: int, count: mmap.mmap | None) -> None:
    pid = cluster.coordinator_pid
    time.sleep(SETTLE_S)
    for _ in range(windows):
        before, began, reports = proc.cpu_s(pid), time.monotonic(), _counted(count)
        time.sleep(WINDOW_S)
        lasted = time.monotonic() - began
        beats = _counted(count) - reports if count is not None else _due(cluster, cost.hosts, lasted)
        cost.beats_ms.append((proc.cpu_s(pid) - before) * 1000 / beats)
    cost.rss_mb = proc.rss_mb(pid)
    cost.threads = (len(os.listdir(f"/proc/{pid}/task")) - SHARED_THREADS) / cost.hosts


def _due(cluster: Cluster, hosts: int, window_s: float) -> float:
    """Return how many heartbeats were due. NotMeasured where a host was not heard: fewer would cost the head less."""
    ages = [host["heard_age_s"] for host in cluster.run()["hosts"]]
    if any(age is None or age > 2 * HEARTBEAT_S for age in ages):
        raise NotMeasured(f"not all {hosts} hosts are heard: this machine is too busy")
    return hosts * window_s / HEARTBEAT_S


def _counted(count: mmap.mmap | None) -> int:
    return int(struct.unpack("Q", count[:8])[0]) if count is not None else 0


def _ask_and_kill(cluster: Cluster, cost: Cost) -> None:
    for _ in range(3):
        began = time.monotonic()
        cluster.ok("status", "--json")
        cost.status_s.append(time.monotonic() - began)
    began = time.monotonic()
    cluster.ok("kill", "t", timeout=TIMEOUT_S)
    cost.kill_s.append(time.monotonic() - began)


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
