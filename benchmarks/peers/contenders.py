"""The ways to keep two workers training: orch with and without a standby, loops by hand, torchrun, Ray Train.

Each starts two workers of one training, each on a host of its own where there can be a lab of hosts. They begin again
by that way's own means when one is killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from benchmarks.lab import DEFAULT_TIMING, cluster_of
from benchmarks.machine import ROOT
from benchmarks.peers.place import WORKERS, Place

WORKDIR = Path(__file__).parent / "workdir"
PEERS_PYTHON = os.environ.get("ORCH_PEERS_PYTHON", str(ROOT / ".venv-peers/bin/python"))
START_S = 240.0
SAVE_S = "PEERS_SAVE_S"
"""The environment variable that says after how many seconds the scripts save, and not every 50 steps."""

Contender = Callable[[Path, Place], AbstractContextManager[None]]
"""Trains below a directory, on the hosts of a place, until its context ends."""


@contextmanager
def _orch(state: Path, place: Place, standby: str) -> Iterator[None]:
    with cluster_of(place.lab) as cluster:
        spec = cluster.spec(
            str(state),
            tasks=WORKERS,
            script="tf_train.py",
            workdir=str(WORKDIR),
            env=_QUIET | {name: os.environ[name] for name in [SAVE_S] if name in os.environ},
            timing=DEFAULT_TIMING,
            restart={"standby": standby, "rescue": "auto" if SAVE_S in os.environ else "off"},
        )
        cluster.ok("up", spec, timeout=START_S)
        yield


@contextmanager
def orch_cold(state: Path, place: Place) -> Iterator[None]:
    """Train under orch, without a standby."""
    with _orch(state, place, "off"):
        yield


@contextmanager
def orch_warm(state: Path, place: Place) -> Iterator[None]:
    """Train under orch, with a standby."""
    with _orch(state, place, "on"):
        yield


@contextmanager
def by_hand(state: Path, place: Place) -> Iterator[None]:
    """Train in a shell loop for each worker, `until python train.py; do sleep 1; done`, with TF_CONFIG."""
    addresses = [f"{place.address(index)}:{place.free_port(index)}" for index in range(WORKERS)]
    loop = f"until {shlex.join([sys.executable, 'tf_train.py', str(state)])}; do sleep 1; done"
    configs = [
        json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}})
        for index in range(WORKERS)
    ]
    with _started(place, [["bash", "-c", loop]] * WORKERS, [{"TF_CONFIG": config} for config in configs]):
        yield


@contextmanager
def torchrun(state: Path, place: Place) -> Iterator[None]:
    """Train the torch ConvNet under torchrun's elastic launcher, with an agent for each worker."""
    endpoint = f"{place.address(0)}:{place.free_port(0)}"
    commands = [
        [
            *(PEERS_PYTHON, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"),
            *("--max-restarts", "1000", "--rdzv-backend", "c10d", "--rdzv-id", "peers"),
            *("--rdzv-endpoint", endpoint, "--rdzv-conf", f"is_host={int(worker == 0)}"),
            *("--local-addr", place.address(worker), "torch_train.py", str(state)),
        ]
        for worker in range(WORKERS)
    ]
    with _started(place, commands, [{}] * WORKERS):
        yield


@contextmanager
def ray_train(state: Path, place: Place) -> Iterator[None]:
    """Train under Ray Train's TensorFlow trainer, with failures allowed; a Ray node on each host of the lab."""
    python_path = {"PYTHONPATH": str(WORKDIR)}
    command = [PEERS_PYTHON, "ray_train.py", str(state)]
    if place.lab is None:
        with _started(place, [command], [python_path]):
            yield
        return
    ray = str(Path(PEERS_PYTHON).with_name("ray"))
    head = f"{place.address(0)}:{place.free_port(0)}"
    short = tempfile.mkdtemp(prefix="ray-")  # a socket's path must be short
    common = [
        ray,
        "start",
        "--block",
        "--num-cpus",
        "1",
        "--disable-usage-stats",
        "--include-dashboard",
        "false",
    ]
    nodes = [
        [*common, "--head", "--port", head.rpartition(":")[2], "--temp-dir", short],
        [*common[:6], "--address", head],
    ]
    nodes = [[*node, "--node-ip-address", place.address(worker)] for worker, node in enumerate(nodes)]
    # Ray's nodes ask each other for a token: this Ray gets one of its own, and not that of the user who measures.
    token = Path(short) / "token"
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32))
    environment = {**python_path, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
    try:
        with _started(place, [*nodes, [*command, head]], [environment] * 3):
            yield
    finally:
        shutil.rmtree(short, ignore_errors=True)


CONTENDERS: dict[str, Contender] = {
    "orch, standby": orch_warm,
    "orch, no standby": orch_cold,
    "by hand, while loop": by_hand,
    "torchrun elastic": torchrun,
    "Ray Train": ray_train,
}

_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2"}


@contextmanager
def _started(
    place: Place, commands: Sequence[list[str]], environments: Sequence[dict[str, str]]
) -> Iterator[None]:
    """Start each command in a session of its own, one a worker, and end the sessions with all that is in them.

    What comes after the workers' runs on the first one's host.
    """
    nowhere = subprocess.DEVNULL
    processes = [
        subprocess.Popen(
            [*place.enter(number if number < WORKERS else 0), *command],
            cwd=WORKDIR,
            env={**os.environ, **_QUIET, "CUDA_VISIBLE_DEVICES": "", **place.environment(), **more},
            stdin=nowhere,
            stdout=nowhere,
            stderr=nowhere,
            start_new_session=True,
        )
        for number, (command, more) in enumerate(zip(commands, environments, strict=True))
    ]
    ours = {process.pid for process in processes}
    try:
        yield
    finally:
        # A launcher is asked first: Ray's and torchrun's have sessions of their own below them.
        for process in processes:
            process.terminate()
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10.0)
        _kill_sessions(ours)
        for process in processes:
            process.wait()


def _kill_sessions(leaders: set[int]) -> None:
    """Kill every process whose session one of the leaders began, and every descendant of those sessions."""
    parents, sessions = {}, {}
    for entry in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
            parents[int(entry)], sessions[int(entry)] = int(fields[1]), int(fields[3])
    doomed = {pid for pid, session in sessions.items() if session in leaders}
    while more := {pid for pid, parent in parents.items() if parent in doomed} - doomed:
        doomed |= more
    for pid in doomed:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
