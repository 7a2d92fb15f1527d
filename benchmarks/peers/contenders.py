"""The ways to keep two workers training: orch with and without a standby, loops by hand, torchrun, Ray Train.

Each starts two workers of one training on this machine, which begin again by that way's own means when one is killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from benchmarks.lab import DEFAULT_TIMING, cluster_of
from benchmarks.machine import ROOT

WORKDIR = Path(__file__).parent / "workdir"
PEERS_PYTHON = os.environ.get("ORCH_PEERS_PYTHON", str(ROOT / ".venv-peers/bin/python"))
WORKERS = 2
START_S = 120.0

Contender = Callable[[Path], AbstractContextManager[None]]
"""Trains below a directory until its context ends."""


@contextmanager
def _orch(state: Path, standby: str) -> Iterator[None]:
    with cluster_of(None) as cluster:
        spec = cluster.spec(
            str(state),
            tasks=WORKERS,
            script="tf_train.py",
            workdir=str(WORKDIR),
            env=_QUIET,
            timing=DEFAULT_TIMING,
            restart={"standby": standby},
        )
        cluster.ok("up", spec, timeout=START_S)
        yield


@contextmanager
def orch_cold(state: Path) -> Iterator[None]:
    """Train under orch, without a standby."""
    with _orch(state, "off"):
        yield


@contextmanager
def orch_warm(state: Path) -> Iterator[None]:
    """Train under orch, with a standby."""
    with _orch(state, "on"):
        yield


@contextmanager
def by_hand(state: Path) -> Iterator[None]:
    """Train in a shell loop for each worker, `until python train.py; do sleep 1; done`, with TF_CONFIG."""
    addresses = [f"127.0.0.1:{_free_port()}" for _ in range(WORKERS)]
    loop = f"until {shlex.join([sys.executable, 'tf_train.py', str(state)])}; do sleep 1; done"
    configs = [
        json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}})
        for index in range(WORKERS)
    ]
    with _started([["bash", "-c", loop]] * WORKERS, [{"TF_CONFIG": config} for config in configs]):
        yield


@contextmanager
def torchrun(state: Path) -> Iterator[None]:
    """Train the torch ConvNet under torchrun's elastic launcher, with an agent for each worker, as on two hosts."""
    command = [
        *(PEERS_PYTHON, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"),
        *("--max-restarts", "1000", "--rdzv-backend", "c10d", "--rdzv-id", "peers"),
        *("--rdzv-endpoint", f"127.0.0.1:{_free_port()}", "torch_train.py", str(state)),
    ]
    with _started([command] * WORKERS, [{}] * WORKERS):
        yield


@contextmanager
def ray_train(state: Path) -> Iterator[None]:
    """Train under Ray Train's TensorFlow trainer, with failures allowed."""
    with _started([[PEERS_PYTHON, "ray_train.py", str(state)]], [{"PYTHONPATH": str(WORKDIR)}]):
        yield


CONTENDERS: dict[str, Contender] = {
    "orch, standby": orch_warm,
    "orch, no standby": orch_cold,
    "by hand, while loop": by_hand,
    "torchrun elastic": torchrun,
    "Ray Train": ray_train,
}

_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2"}


@contextmanager
def _started(commands: Sequence[list[str]], environments: Sequence[dict[str, str]]) -> Iterator[None]:
    """Start each command in a session of its own, and end the sessions with all that is in them."""
    nowhere = subprocess.DEVNULL
    processes = [
        subprocess.Popen(
            command,
            cwd=WORKDIR,
            env={**os.environ, **_QUIET, "CUDA_VISIBLE_DEVICES": "", **more},
            stdin=nowhere,
            stdout=nowhere,
            stderr=nowhere,
            start_new_session=True,
        )
        for command, more in zip(commands, environments, strict=True)
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


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
