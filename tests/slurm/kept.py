"""An allocation of the lab with a keeper on a node, as the batch step makes it, but by hand."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from orchestrator.core.plan import HostPlan
from orchestrator.head.code import bundle
from orchestrator.head.reach.slurm.commands import allocation_name
from orchestrator.head.reach.slurm.transport import step
from tests.slurm.lab import SlurmLab


class Kept:
    """A job with all nodes of the lab, and keepers where a test wants one."""

    def __init__(self, lab: SlurmLab, directory: Path, *options: str) -> None:
        self.lab = lab
        self.bundle = directory / "orch.pyz"
        self.bundle.write_bytes(bundle.load().code.data)
        script = directory / "sleep.sh"
        script.write_text("#!/bin/sh\nexec sleep 600\n")
        words = [
            "sbatch",
            "--parsable",
            f"--nodes={lab.count}",
            "--no-kill",
            "--output=/dev/null",
            *options,
            str(script),
        ]
        self.job_id = lab.run(*words, str(script)).strip()
        while lab.job(self.job_id)["JobState"] != "RUNNING":
            pass
        self.allocation = allocation_name(lab.job(self.job_id) | {"JobId": self.job_id})
        self._keepers: list[subprocess.Popen[bytes]] = []

    def host(self, index: int) -> HostPlan:
        """Return the plan of a node."""
        return HostPlan(
            self.lab.name(index), transport="slurm", allocation=self.allocation, python=sys.executable
        )

    def keep(self, index: int) -> dict[str, object]:
        """Start a keeper, and return the first thing that it says."""
        host = self.host(index)
        words = [*step(host, "--unbuffered", "--input=none"), "--", host.python, "-I", "-S", str(self.bundle)]
        keeper = subprocess.Popen(
            [*words, "keeper", host.allocation],
            env=self.lab.environ,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._keepers.append(keeper)
        assert keeper.stdout is not None
        said: dict[str, object] = json.loads(keeper.stdout.readline())
        return said

    def hears(self, which: int = 0) -> dict[str, object]:
        """Return the next thing that a keeper says."""
        stdout = self._keepers[which].stdout
        assert stdout is not None
        said: dict[str, object] = json.loads(stdout.readline())
        return said

    def close(self) -> None:
        """End the job, and the programs that waited for its steps. A keeper would hold it for Slurm's KillWait."""
        for index in range(1, self.lab.count + 1):
            for pid, line in self.lab.processes(index).items():
                if " keeper " in line and not line.startswith("srun"):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
        words = ["scancel", "--quiet", self.job_id]  # it may have ended with its steps
        subprocess.run(words, env=self.lab.environ, capture_output=True, check=False)
        for keeper in self._keepers:
            keeper.wait(20)
            if keeper.stdout is not None:
                keeper.stdout.close()
