"""How long it takes until a small script runs on every one of so many SSH hosts: orch, Ansible, ssh in parallel.

Each brings the script to the host and starts it there; what counts is that its process has begun on all of them. orch
looks over the hosts first, installs its agent, and goes on watching; the others do not.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.figure import NotMeasured
from benchmarks.lab import DEFAULT_TIMING, cluster_of, lab_of
from benchmarks.peers.contenders import PEERS_PYTHON, WORKDIR
from tests.cluster.lab import Lab, LabHost

HOSTS = (3, 16, 64)
TIMEOUT_S = 300.0

Way = Callable[[Lab, Sequence[LabHost], Path], None]
"""Starts the script on hosts; each process tells that it has begun by a file in a directory."""


def measure(failures: list[str], sizes: Sequence[int] = HOSTS) -> dict[str, dict[int, float]]:
    """Return the seconds by the name of the way and the number of hosts, twice each; the faster one counts.

    What could not be measured is added to `failures`.
    """
    found: dict[str, dict[int, float]] = {}
    with lab_of(max(sizes)) as lab:
        for n_hosts in sizes:
            for name, way in WAYS.items():
                try:
                    took_s = [_start(way, lab, lab.hosts[:n_hosts]) for _ in range(2)]
                except NotMeasured as e:
                    failures.append(f"{name} on {n_hosts} hosts: not measured: {e}")
                    continue
                found.setdefault(name, {})[n_hosts] = min(took_s)
    return found


def _start(way: Way, lab: Lab, hosts: Sequence[LabHost]) -> float:
    with tempfile.TemporaryDirectory(prefix="orch-begun-") as directory:
        told = Path(directory)
        began = time.monotonic()
        with ThreadPoolExecutor(1) as thread:
            started = thread.submit(way, lab, hosts, told)
            while len(list(told.iterdir())) < len(hosts):
                if time.monotonic() > began + TIMEOUT_S or (started.done() and started.exception()):
                    raise NotMeasured(f"{len(list(told.iterdir()))} of {len(hosts)} hosts began") from (
                        started.exception() if started.done() else None
                    )
                time.sleep(0.01)
            took_s = time.monotonic() - began
            started.result()
        for process in told.iterdir():
            with contextlib.suppress(ProcessLookupError):  # orch has ended its own
                os.kill(int(process.name), signal.SIGKILL)
        return took_s


def orch(lab: Lab, hosts: Sequence[LabHost], told: Path) -> None:
    """Start it by `orch up`, which starts a coordinator first."""
    with cluster_of(lab) as cluster:
        spec = cluster.spec(
            str(told),
            tasks=len(hosts),
            script="begun.py",
            workdir=str(WORKDIR),
            strategy="processes",
            checkpoint=False,
            timing={**DEFAULT_TIMING, "start_after": "10m"},
        )
        cluster.ok("up", spec, timeout=TIMEOUT_S)


def ansible(lab: Lab, hosts: Sequence[LabHost], told: Path) -> None:
    """Start it by a playbook, on as many hosts at once as there are."""
    program = Path(PEERS_PYTHON).with_name("ansible-playbook")
    if not program.exists():
        raise NotMeasured(f"{program} is not there")
    options = " ".join(_options(lab))
    with tempfile.TemporaryDirectory(prefix="orch-ansible-") as directory:
        inventory = Path(directory) / "hosts"
        inventory.write_text(
            "".join(
                f"{host.name} ansible_host={host.address} ansible_port={host.port} ansible_env_home={host.home}\n"
                for host in hosts
            )
            + f"[all:vars]\nansible_user={hosts[0].plan().user}\nansible_ssh_common_args='{options}'\n"
            f"ansible_ssh_private_key_file={lab.identity_file}\npython={sys.executable}\ntold={told}\n"
            f"ansible_python_interpreter={os.path.realpath(sys.executable)}\n"
        )
        env = {**os.environ, "ANSIBLE_LOCAL_TEMP": directory, "HOME": directory, "ANSIBLE_NOCOWS": "1"}
        command = [str(program), "-i", str(inventory), "-f", str(len(hosts)), "start.yml"]
        done = subprocess.run(command, cwd=WORKDIR, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotMeasured(f"ansible-playbook: {(done.stdout + done.stderr)[-500:]}")


def parallel_ssh(lab: Lab, hosts: Sequence[LabHost], told: Path) -> None:
    """Start it by ssh, all hosts at once, as pdsh and parallel-ssh do it."""
    script = (WORKDIR / "begun.py").read_bytes()
    run = (
        f"cat > $HOME/begun.py; nohup {shlex.join([sys.executable])} $HOME/begun.py {told} > /dev/null 2>&1 &"
    )

    def one(host: LabHost) -> None:
        where = ["-i", str(lab.identity_file), "-p", str(host.port), f"{host.plan().user}@{host.address}"]
        subprocess.run(["ssh", *_options(lab), *where, run], input=script, check=True)

    with ThreadPoolExecutor(len(hosts)) as threads:
        list(threads.map(one, hosts))


def _options(lab: Lab) -> list[str]:
    options = {"BatchMode": "yes", "GlobalKnownHostsFile": "none", "UserKnownHostsFile": lab.known_hosts}
    return ["-F", "none", *(f"-o{key}={value}" for key, value in options.items())]


WAYS: dict[str, Way] = {"orch up": orch, "Ansible": ansible, "ssh in parallel": parallel_ssh}
