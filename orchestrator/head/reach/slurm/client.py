"""The client of a coordinator that runs in a job's batch step: HTTP over an srun, so that no port is open."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import threading
from typing import Any

from orchestrator.core.errors import CoordinatorUnreachable, JobNotRunning
from orchestrator.core.state.phase_states import Phase
from orchestrator.head.api.client import Client
from orchestrator.head.node.paths import Paths
from orchestrator.head.reach.slurm import commands, job

_ENDED_HINT = "`orch logs` and `orch why` read what it has left; `orch up --on slurm FILE` starts a new one"

_ENDS = [phase for phase in Phase if phase.is_terminal]


class JobClient(Client):
    """See head.client. Requests share one connection: each srun is a step of the job, and a job has only so many."""

    def __init__(self, paths: Paths, allocation: job.Job, *, timeout_s: float = 60.0) -> None:
        super().__init__(f"job {allocation.id}", state_dir=paths.state_dir, timeout_s=timeout_s)
        self._job = allocation
        self._paths = paths
        self._kept: _StepConnection | None = None
        self._one = threading.Lock()

    def _ask(self, method: str, target: str, body: bytes | None, timeout_s: float | None) -> dict[str, Any]:
        with self._one:
            try:
                return super()._ask(method, target, body, timeout_s)
            except CoordinatorUnreachable as e:
                self._drop()
                if e.__cause__ is not None and method == "GET" and isinstance(e.__cause__, _Stale):
                    try:
                        return super()._ask(method, target, body, timeout_s)
                    except CoordinatorUnreachable as again:
                        self._drop()
                        e = again
                return self._instead(method, target, e)

    def _connection(self, patience_s: float) -> http.client.HTTPConnection:
        if self._kept is not None and self._kept.lives():
            self._kept.set_patience(patience_s)
            return self._kept
        self._drop()
        try:
            known = commands.job(self._job.id)
        except commands.SlurmFailed as e:
            raise CoordinatorUnreachable(e.message, hint=e.hint) from e
        state = (known or {}).get("JobState", "unknown to Slurm")
        if known is None or state != "RUNNING":
            why = f" ({known['Reason']})" if known is not None and state == "PENDING" else ""
            is_over = known is None or state in commands.OVER
            raise JobNotRunning(
                f"job {self._job.id} is {state}{why}: no coordinator is running",
                hint=_ENDED_HINT if is_over else None,
                is_over=is_over,
            ) from FileNotFoundError()
        words = [
            "srun",
            f"--jobid={self._job.id}",
            "--overlap",
            "--nodes=1",
            "--ntasks=1",
            "--mem=0",
            "--quiet",
        ]
        words += [
            f"--nodelist={known['BatchHost']}",
            "--unbuffered",
            "--job-name=orch",
            "--cpu-bind=none",
            "--",
        ]
        place = os.path.join(job.runtime_dir(commands.allocation_name(known)), "coordinator.sock")
        words += [self._job.python, "-I", "-S", self._paths.bundle, "dial", place]
        self._kept = _StepConnection(words, patience_s)
        return self._kept

    def _drop(self) -> None:
        if self._kept is not None:
            self._kept.end()
            self._kept = None

    def _instead(self, method: str, target: str, error: CoordinatorUnreachable) -> dict[str, Any]:
        """Return the last status where the job does not run at present; for any other request, raise the error.

        A job that ended by force has written no end of its run: then what it wrote last is not the present.
        """
        if method == "GET" and target.partition("?")[0] == "/v1/status":
            try:
                known = commands.job(self._job.id)
                with open(os.path.join(self._paths.state_dir, "status.json"), encoding="utf-8") as file:
                    kept = json.load(file)
            except (OSError, ValueError, commands.SlurmFailed):
                raise error from error.__cause__
            state = (known or {}).get("JobState")
            if isinstance(kept, dict) and state != "RUNNING":
                is_known = all(run.get("phase") in _ENDS for run in kept.get("runs", ()))
                if is_known or state == "COMPLETING":  # the end is about to be written
                    return kept
        raise error from error.__cause__


class _Stale(http.client.HTTPException):
    """The other end has closed the connection since the last request."""


class _StepConnection(http.client.HTTPConnection):
    """An HTTP connection through the stdin and stdout of one srun. It stays open between requests."""

    def __init__(self, words: list[str], patience_s: float) -> None:
        super().__init__("localhost", timeout=patience_s)
        self._words = words
        self._child: subprocess.Popen[bytes] | None = None

    def connect(self) -> None:
        """Start the srun. http.client calls this on the first request."""
        ours, theirs = socket.socketpair()
        with theirs:
            self._child = subprocess.Popen(
                self._words,
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        ours.settimeout(self.timeout)
        self.sock = ours

    def lives(self) -> bool:
        """Return whether the srun still runs."""
        return self.sock is not None and self._child is not None and self._child.poll() is None

    def set_patience(self, seconds: float) -> None:
        """Set the timeout of the next request."""
        self.timeout = seconds
        if self.sock is not None:
            self.sock.settimeout(seconds)

    def getresponse(self) -> http.client.HTTPResponse:
        """Return the response. Raises _Stale where the srun has ended meanwhile."""
        try:
            return super().getresponse()
        except (http.client.RemoteDisconnected, ConnectionResetError) as e:
            raise _Stale("the step has ended") from e

    def close(self) -> None:
        """Keep the srun, which only `end` ends: the client and http.client close a connection after a request."""

    def end(self) -> None:
        """End the srun."""
        if self.sock is not None:
            self.sock.close()
            self.sock = None
        if self._child is not None:
            self._child.terminate()
            try:
                self._child.wait(5.0)
            except subprocess.TimeoutExpired:
                self._child.kill()
                self._child.wait()
