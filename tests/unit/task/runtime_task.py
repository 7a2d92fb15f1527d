"""A task as a shim sees it: the runtime in its own process, and the other end of its socket."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from tests.lean import python_for
from tests.patience import patient
from tests.warm import Forked, forked, suits

ROOT = Path(__file__).parents[3]
ENTRY = "import sys; from orchestrator.task.main import main; sys.exit(main(sys.argv[1:]))"


class Task:
    """Started on construction; `close()` ends it whatever happened."""

    def __init__(
        self,
        script: Path,
        *args: str,
        env: dict[str, str] | None = None,
        attached: bool = True,
        work: Path | None = None,
        warm: bool = False,
    ) -> None:
        """Start it; `warm`: in a fork of a process that has imported TensorFlow, where that is the same."""
        ours, theirs = socket.socketpair()
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3", **(env or {})}
        if attached:
            environment["ORCH_FD"] = str(theirs.fileno())
        self._told = ""
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  (close() does)
        place = work or script.parent
        self.process: subprocess.Popen[str] | Forked
        if warm and attached and suits(script, environment):
            self.process = forked(
                ENTRY, script, *args, env=environment, cwd=place, stderr=self._stderr, link=theirs
            )
        else:
            self.process = subprocess.Popen(
                [python_for(script), "-c", ENTRY, str(script), *args],
                env=environment,
                pass_fds=[theirs.fileno()] if attached else [],
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                text=True,
                cwd=place,
            )
        theirs.close()
        ours.settimeout(patient(60.0))
        self.socket = ours
        self.messages = ours.makefile("r", encoding="utf-8")
        self.out = ""

    @property
    def err(self) -> str:
        """What it has written to stderr so far."""
        if not self._stderr.closed:
            self._told = os.pread(self._stderr.fileno(), 2**24, 0).decode(errors="replace")
        return self._told

    def order(self, **order: Any) -> None:
        self.socket.sendall(json.dumps(order).encode() + b"\n")

    def until(self, key: str) -> dict[str, Any]:
        """Wait for the next message that has this key."""
        for line in self.messages:
            message: dict[str, Any] = json.loads(line)
            if key in message:
                return message
        raise AssertionError(f"the task ended without saying {key!r}: {self.ended()}\n{self.err}")

    def release(self, env: dict[str, str] | None = None) -> None:
        self.until("ready")
        self.order(go={"env": env or {}})

    def ended(self, timeout_s: float = 100.0) -> int:
        """Wait for the end, and return the exit code. The output is in `out` and `err`."""
        try:
            self.out, _ = self.process.communicate(timeout=patient(timeout_s))
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it has not ended within {timeout_s:.0f} s\n{self.err}") from None
        return self.process.wait()

    def said(self) -> list[dict[str, Any]]:
        """Return its remaining messages up to its end, without heartbeats."""
        return [message for message in map(json.loads, self.messages) if "heartbeat" not in message]

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()
        self._told = self.err
        self._stderr.close()
        self.messages.close()
        self.socket.close()
