"""The time from connecting to an agent's first heartbeat, compared with `ssh host true` by OpenSSH's client.

The bundle and psutil were pushed to the hosts before. The links are those of the coordinator, including their threads.
"""

from __future__ import annotations

import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import paramiko

from benchmarks.figure import Figure, NotMeasured
from benchmarks.lab import lab_of
from benchmarks.limits import LIMITS, Limit
from orchestrator.core.state.run import Problem
from orchestrator.head.code import bundle
from orchestrator.head.links.link import HostLink, Watch
from orchestrator.head.reach.ssh.transport import SshTransport
from orchestrator.protocol.limits import PSUTIL_AFTER_S
from tests.cluster.lab import Lab, LabHost

RUN = "bench-20260101-1"
REPEATS = 21
HOSTS = 32
ROUNDS = 11
PARAMIKO_MS = 3.3
"""What paramiko alone took to connect and run `true`, on the quiet machine for which the limit was set."""

HEARTBEAT_TIMEOUT_S = 60.0
UNPACK_S = PSUTIL_AFTER_S + 5.0
"""How long a connection stays whose agent is to unpack psutil: with its connection, an agent ends."""
UNPACK_TRIES = 3


class FirstReports:
    """Listens to links until each has brought a heartbeat."""

    def __init__(self, n_links: int) -> None:
        self._missing = n_links
        self._heard: set[str] = set()
        self._lock = threading.Lock()
        self._done = threading.Event()
        self.refusals: list[str] = []

    def up(self, run_id: str, host: str, hello: Mapping[str, Any]) -> None:
        """Ignore a hello, which is not a heartbeat."""

    def down(self, run_id: str, host: str, problem: str) -> None:  # noqa: ARG002 (the protocol's signature)
        """Give up: a broken connection spoils the measurement."""
        self.refusals.append(f"{host}: {problem}")
        self._done.set()

    def flooded(self, run_id: str, host: str, problem: str) -> None:
        """Ignore it: agents of ours do not."""

    def refused(self, run_id: str, host: str, problem: Problem) -> None:
        """Give up, as after a broken connection."""
        self.down(run_id, host, problem.message)

    def reported(
        self,
        run_id: str,  # noqa: ARG002
        host: str,
        report: Mapping[str, Any],  # noqa: ARG002
        link: HostLink,  # noqa: ARG002
    ) -> None:
        """Count the host of a heartbeat."""
        with self._lock:
            self._heard.add(host)
            if len(self._heard) == self._missing:
                self._done.set()

    def wait(self) -> None:
        """Wait until all heartbeats have come."""
        if not self._done.wait(HEARTBEAT_TIMEOUT_S) or self.refusals:
            raise NotMeasured(f"only {len(self._heard)} of {self._missing} hosts came up: {self.refusals}")


def measure() -> list[Figure]:
    """Measure one host against `ssh host true`, and then 32 hosts at once."""
    figures = []
    with lab_of(1) as lab, transport_of() as transport:
        host = lab.hosts[0]
        warm_up(transport, lab.hosts)
        pairs = [(_ssh_true_ms(lab, host), connect(transport, [host]).wall_ms) for _ in range(REPEATS)]
        plain = Figure("", "ms", 0.0, tuple(pair[0] for pair in pairs)).measured
        row = "connect: until the first heartbeat, x ssh host true"
        figures.append(
            Figure(
                f"SSH connect to first heartbeat, {LIMITS[row]:g} x ssh host true + 100 ms",
                "ms",
                Limit(row, LIMITS[row] * plain + 100),
                tuple(pair[1] for pair in pairs),
                f"`ssh host true` with curve25519 takes {plain:.0f} ms",
            )
        )
    with lab_of(HOSTS) as lab, transport_of() as transport:
        warm_up(transport, lab.hosts)
        rounds = [
            (_paramiko_cpu_ms(lab) / HOSTS, connect(transport, lab.hosts).head_cpu_ms / HOSTS)
            for _ in range(ROUNDS)
        ]
        bare = Figure("", "ms", 0.0, tuple(each[0] for each in rounds)).measured
        ours = tuple(each[1] for each in rounds)
        limit_ms = LIMITS["connect: CPU of the head"]
        claim = f"CPU of the head to connect, per host of {HOSTS}"
        figures.append(Figure(claim, "ms", limit_ms, ours))
        figures.append(
            Figure(
                f"the same, {LIMITS['connect: CPU of the head'] / PARAMIKO_MS:.1f} x paramiko alone",
                "ms",
                Limit(limit_ms.row, limit_ms / PARAMIKO_MS * bare),
                ours,
                f"paramiko alone, connect and `true`: {bare:.1f} ms here, {PARAMIKO_MS} ms when the limit was set",
            )
        )
    return figures


class Cost:
    """The time and the CPU that connections took."""

    def __init__(self) -> None:
        self._began, self._cpu = time.perf_counter(), time.process_time()
        self.wall_ms = self.head_cpu_ms = 0.0

    def stop(self) -> Cost:
        """Stop measuring now."""
        self.wall_ms = (time.perf_counter() - self._began) * 1000
        self.head_cpu_ms = (time.process_time() - self._cpu) * 1000
        return self


def connect(transport: SshTransport, hosts: Sequence[LabHost], *, stay_s: float = 0.0) -> Cost:
    """Connect to all hosts at once, measure until the first heartbeat of each, and stay for so long."""
    listener = FirstReports(len(hosts))
    watch = Watch(epoch=1, heartbeat_s=2.0, silence_max_s=60.0)
    plans = [host.plan() for host in hosts]
    cost = Cost()
    links = [HostLink(plan, transport, bundle.load, listener) for plan in plans]
    for link in links:
        link.attach(RUN, watch)
    try:
        listener.wait()
        return cost.stop()
    finally:
        time.sleep(stay_s)
        for link in links:
            link.close()
        time.sleep(0.3)  # the end of these links must not count in the next measurement


def warm_up(transport: SshTransport, hosts: Sequence[LabHost]) -> None:
    """Push what the hosts lack, and wait until psutil is unpacked. Raises NotMeasured where it never is."""
    for _ in range(UNPACK_TRIES):
        connect(transport, hosts, stay_s=UNPACK_S)
        if all(list(host.host_dir.glob("psutil/*/psutil")) for host in hosts):
            return
    raise NotMeasured(f"psutil is not unpacked on all hosts after {UNPACK_TRIES} connections")


@contextmanager
def transport_of() -> Iterator[SshTransport]:
    """Yield a transport that reads no files of the user who measures."""
    with tempfile.TemporaryDirectory(prefix="orch-bench-") as directory:
        home = Path(directory)
        yield SshTransport(home / "known_hosts", home=home, config_files=(home / ".ssh/config",))


def _paramiko_cpu_ms(lab: Lab) -> float:
    """Return the CPU of connecting to all hosts at once with paramiko alone."""
    key = paramiko.PKey.from_path(lab.identity_file)

    def one(host: LabHost) -> None:
        client = paramiko.SSHClient()
        client.load_host_keys(str(lab.known_hosts))
        client.connect(
            host.address,
            host.port,
            host.plan().user,
            pkey=key,
            allow_agent=False,
            look_for_keys=False,
            disabled_algorithms={"kex": ["mlkem768x25519-sha256"]},
        )
        _, stdout, _ = client.exec_command("true")
        stdout.channel.recv_exit_status()
        client.close()

    began = time.process_time()
    with ThreadPoolExecutor(HOSTS) as threads:
        list(threads.map(one, lab.hosts))
    return (time.process_time() - began) * 1000


def _ssh_true_ms(lab: Lab, host: LabHost) -> float:
    command = ["ssh", "-F", "none", "-o", "KexAlgorithms=curve25519-sha256", "-o", "BatchMode=yes"]
    command += ["-o", f"UserKnownHostsFile={lab.known_hosts}", "-o", "GlobalKnownHostsFile=none"]
    command += [
        "-i",
        str(lab.identity_file),
        "-p",
        str(host.port),
        f"{host.plan().user}@{host.address}",
        "true",
    ]
    began = time.perf_counter()
    subprocess.run(command, stdin=subprocess.DEVNULL, check=True)
    return (time.perf_counter() - began) * 1000
