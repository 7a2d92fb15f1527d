"""What the client needs from its caller: paths, a clock, and functions that show messages."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from orchestrator.core.errors import CoordinatorUnreachable
from orchestrator.head.api.client import NOBODY, Client
from orchestrator.head.node.paths import Paths

ALLOCATION = "ORCH_ALLOCATION"
"""Set within a job's batch step, which runs on the coordinator's machine."""


class Environment:
    """The environment of a client in a program. The command line has a session instead, which prints to stderr."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        self.environ = dict(os.environ) if environ is None else environ
        self.paths = Paths.from_environment(self.environ)
        self._job_client: Client | None = None

    def client(self) -> Client:
        """Return a client of the coordinator of these paths. It connects at the first request."""
        self.paths.check_socket_path()
        self.paths.check()
        if ALLOCATION not in self.environ and os.path.exists(self.paths.job):
            from orchestrator.head.reach.slurm import client, job

            own_job = job.read(self.paths.state_dir)
            if own_job is not None:
                if self._job_client is None:
                    self._job_client = client.JobClient(self.paths, own_job)
                return self._job_client
        return Client(self.paths.socket, state_dir=self.paths.state_dir)

    def say(self, text: str) -> None:
        """Report progress to the program's log."""
        import logging

        logging.getLogger("orchestrator").info("%s", text)

    def rewrite(self, text: str) -> bool:  # noqa: ARG002
        """Show what changes all the time in one line. False where there is no such line."""
        return False

    def warn(self, text: str) -> None:
        """Report a warning."""
        import logging

        logging.getLogger("orchestrator").warning("%s", text)

    def hint(self, text: str | None) -> None:
        """Report what a person can do; None reports nothing."""
        if text:
            self.say(text)

    def pause(self, seconds: float) -> None:
        """Sleep."""
        time.sleep(seconds)

    def now(self) -> float:
        """Return the time of a monotonic clock in seconds, for deadlines."""
        return time.monotonic()

    def time(self) -> float:
        """Return Unix time."""
        return time.time()


def is_not_running(error: CoordinatorUnreachable) -> bool:
    """Return whether there is no coordinator at all, as opposed to one that does not answer."""
    return isinstance(error.__cause__, NOBODY)
