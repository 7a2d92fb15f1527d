"""The command line on the login node of the Slurm lab, as a person has it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from tests.slurm.lab import SlurmLab

WORKDIR = Path(__file__).parent.parent / "cluster" / "workdir"

_NVIDIA_SMI = """#!/bin/sh
case "$1" in
  -L) echo 'GPU 0: A (UUID: GPU-1)'; echo 'GPU 1: A (UUID: GPU-2)';;
  --query-gpu=*) exit 9;;
esac
"""


class Login:
    """A home directory that all nodes share, and `orch` in it."""

    def __init__(self, directory: Path, lab: SlurmLab) -> None:
        self.lab = lab
        self.directory = directory
        self.state = directory / "state"
        home = directory / "home"
        home.mkdir()
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("ORCH_", "SLURM_"))}
        self.environ = {
            **kept,
            "SLURM_CONF": str(lab.conf),
            "HOME": str(home),
            "ORCH_STATE_DIR": str(self.state),
            "ORCH_RUNTIME_DIR": str(directory / "rt"),
            "PYTHONPATH": str(Path(__file__).parent.parent.parent),
        }

    def show_gpus(self) -> None:
        """Put an nvidia-smi on the path that shows two GPUs: terminals stand in for their device files only."""
        tool = self.directory / "bin" / "nvidia-smi"
        tool.parent.mkdir()
        tool.write_text(_NVIDIA_SMI)
        tool.chmod(0o755)
        self.environ["PATH"] = f"{tool.parent}:{os.environ['PATH']}"

    def spec(
        self, *args: str, nodes: int = 2, spares: int = 0, gpus: int = 0, script: str = "fake_trainer.py",
        slurm: dict[str, Any] | None = None, **run: Any
    ) -> str:  # fmt: skip
        """Write a spec with a task per node, and return its path."""
        document = {
            "version": 1,
            "name": "t",
            "slurm": {"nodes": nodes, "spares": spares, "gpus_per_node": gpus, **(slurm or {})},
            "run": {
                "strategy": "multi_worker_mirrored",
                "script": script,
                "args": list(args),
                "workdir": str(WORKDIR),
                "python": sys.executable,
                "tasks": {"worker": {"replicas": nodes, "gpus": gpus}},
                "checkpoint": {"dir": str(self.directory / "ckpt")},
                "timing": {
                    "heartbeat": "0.5s", "unreachable_after": "2s", "lost_after": "6s", "kill_grace": "3s",
                },
                "restart": {"standby": "off"},
                **run,
            },
        }  # fmt: skip
        path = self.directory / "cluster.yaml"
        path.write_text(yaml.safe_dump(document))
        return str(path)

    def orch(self, *words: str, timeout_s: float = 60.0, check: bool = True) -> str:
        """Run a command, and return what it printed on stdout."""
        done = subprocess.run(
            [sys.executable, "-m", "orchestrator.cli.main", *words],
            env=self.environ, cwd=self.directory, capture_output=True, text=True, timeout=timeout_s, check=False,
        )  # fmt: skip
        self.stderr = done.stderr
        assert not check or done.returncode == 0, f"{words}: {done.returncode}\n{done.stderr}\n{self.log()}"
        return done.stdout

    def status(self) -> dict[str, Any]:
        """Return the newest run, as `orch status --json` shows it."""
        return dict(json.loads(self.orch("status", "t", "--json"))["runs"][-1])

    def wait(self, happens: Callable[[dict[str, Any]], bool], seconds: float = 60.0) -> dict[str, Any]:
        """Wait until the run is as wanted."""
        deadline = time.monotonic() + seconds
        seen: dict[str, Any] = {}
        while time.monotonic() < deadline:
            try:
                seen = self.status()
            except (AssertionError, subprocess.TimeoutExpired):
                time.sleep(0.5)
                continue
            if happens(seen):
                return seen
            time.sleep(0.3)
        raise AssertionError(f"it does not come to that:\n{json.dumps(seen, indent=1)[:3000]}\n{self.log()}")

    @property
    def job(self) -> str:
        """The number of the job."""
        return str(json.loads((self.state / "slurm" / "t" / "job.json").read_text())["id"])

    def log(self) -> str:
        """Return what the batch step has said, and the end of the coordinator's log."""
        parts = []
        for name in ("batch.log", "coordinator.log"):
            path = self.state / "slurm" / "t" / name
            parts.append(f"--- {name}\n" + (path.read_text()[-3000:] if path.exists() else "none"))
        return "\n".join(parts)

    def index_of(self, node: str) -> int:
        """Return the number of a node in the lab."""
        return int(node.rpartition("n")[2])
