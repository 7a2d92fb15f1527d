"""Runs a script plain, as its author does; or as the workers of `transparent: true`.

The workers have the runtime's own entry and a real TF_CONFIG; the gang is killed and seeded here.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from orchestrator.adapters.checkpoints import copying, seed, verify
from tests.contract.strategy_harness import free_ports, with_row

ROOT = Path(__file__).parents[2]
LIMIT_S = 150.0
OPTIONS = {"strategy": "multi_worker_mirrored", "transparent": True, "save_every_steps": 2}
_SHORTER = (
    (r"\bkeras_core\b", "keras"),
    (r"\b((?:[a-z_]*)epochs|EPOCHS|NUM_EPOCHS)(\s*=\s*)\d+\b", r"\g<1>\g<2>2"),
    (r"\b([a-z_]*batch_size|BATCH_SIZE)(\s*=\s*)\d+\b", r"\g<1>\g<2>32"),
)
"""What is changed in the copy that is run: few steps, and the name under which Keras 3 was developed."""


def shortened(text: str, changes: list[list[str]]) -> str:
    """Return the script with few epochs, small batches, and what the collection asks for. Its lines stay."""
    for pattern, new in (*_SHORTER, *changes):
        text = re.sub(pattern, new, text)
    return text


class Child:
    """One process: the script alone, or a worker of it."""

    def __init__(
        self, kind: str, script: Path, home: Path, env: dict[str, str], fds: tuple[int, ...] = ()
    ) -> None:
        (home / "work").mkdir(parents=True, exist_ok=True)
        self.home = home
        self.code: int | None = None
        words = [sys.executable, "-m", "tests.public_scripts.child", kind, str(script), str(home)]
        told = {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", **env}
        with (home / "log").open("wb") as log:
            self._process = subprocess.Popen(
                words, cwd=home / "work", env={**os.environ, **told}, stdout=log, stderr=log, pass_fds=fds
            )

    def poll(self) -> int | None:
        """Return the exit code once it has ended."""
        self.code = self._process.poll()
        return self.code

    def kill(self) -> None:
        """Kill it, and wait for its end."""
        if self.poll() is None:
            self._process.kill()
            self.code = self._process.wait()

    @property
    def log(self) -> str:
        """What it has printed."""
        return (self.home / "log").read_text(errors="replace")

    def result(self) -> dict[str, Any] | None:
        """Return its figures and weights, if it got so far."""
        try:
            found: dict[str, Any] = json.loads((self.home / "result.json").read_text())
        except OSError:
            return None
        with np.load(self.home / "weights.npz") as saved:
            found["weights"] = [saved[f"arr_{number}"] for number in range(len(saved.files))]
        return found


def plain(script: Path, home: Path) -> Child:
    """Start it as `python script.py` does."""
    return Child("alone", script, home, {})


class Gang:
    """The workers of one generation."""

    def __init__(self, script: Path, home: Path, directories: list[Path]) -> None:
        addresses = [f"127.0.0.1:{port}" for port in free_ports(len(directories))]
        self.workers = []
        self._sockets = []
        for index, directory in enumerate(directories):
            config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
            ours, theirs = socket.socketpair()
            env = {
                "ORCH_FD": str(theirs.fileno()),
                "ORCH_RUNTIME": json.dumps(with_row(OPTIONS)),
                "ORCH_CHECKPOINT_DIR": str(directory),
                "ORCH_TASK": f"worker:{index}",
            }
            self.workers.append(Child("worker", script, home / f"worker-{index}", env, (theirs.fileno(),)))
            theirs.close()
            ours.sendall(json.dumps({"go": {"env": {"TF_CONFIG": json.dumps(config)}}}).encode() + b"\n")
            ours.setblocking(False)
            self._sockets.append(ours)

    def listen(self) -> None:
        """Take what they say: a socket that nobody reads would fill up."""
        for each in self._sockets:
            try:
                while each.recv(1 << 16):
                    pass
            except OSError:
                continue

    def ended(self) -> bool:
        """Return whether all have ended; one that failed takes the others with it, as under orch."""
        self.listen()
        codes = [worker.poll() for worker in self.workers]
        if any(codes):
            time.sleep(1.0)
            self.kill()
        return all(worker.code is not None for worker in self.workers)

    def kill(self) -> None:
        """Kill them all."""
        for worker in self.workers:
            worker.kill()


def seeded(root: Path, generation: int, workers: int) -> list[Path]:
    """Return a checkpoint directory for each worker of a generation, as orch gives them."""
    chief = Path(seed.seed(str(root / "shared"), generation)["path"])
    directories = [chief]
    for index in range(1, workers):
        scratch = root / f"scratch-{generation}-{index}"
        copying.copy(str(chief), str(scratch))
        directories.append(scratch)
    return directories


def until(done: Callable[[], bool], limit_s: float = LIMIT_S) -> bool:
    """Wait for it; return False after the limit."""
    until_at = time.monotonic() + limit_s
    while not done():
        if time.monotonic() > until_at:
            return False
        time.sleep(0.1)
    return True


def saved_step(directory: Path) -> int:
    """Return the step of the newest whole checkpoint, 0 for none."""
    found = verify(str(directory))["checkpoint"] or {}
    return int(found.get("global_step") or 0)
