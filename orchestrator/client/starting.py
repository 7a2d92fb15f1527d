"""Starts a coordinator if none is running, and waits until it answers."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

from orchestrator.client.environment import Environment, is_not_running
from orchestrator.core.errors import CoordinatorUnreachable
from orchestrator.core.words import duration

START_TIMEOUT_S = 30.0
_POLL_EVERY_S = 0.05
_LOG_LINES = 12


def coordinator_command() -> list[str]:
    """Return the command line of a coordinator process."""
    # -P: otherwise Python imports from the current directory first, and a training directory may have a `random.py`.
    return [sys.executable, "-P", "-m", "orchestrator.cli.main", "coordinator", "run"]


def ensure_coordinator(
    environment: Environment, *, command: list[str] | None = None
) -> tuple[dict[str, Any], bool]:
    """Return the coordinator's document, and whether this call started it."""
    client = environment.client()
    try:
        return client.get("/v1/coordinator"), False
    except CoordinatorUnreachable as e:
        # A process has the socket but does not answer: a second coordinator would be refused.
        if not is_not_running(e):
            raise
    environment.paths.ensure()
    environment.say("Starting the coordinator …")
    log_from = log_size(environment)
    child: subprocess.Popen[bytes] | None = None
    deadline = environment.now() + START_TIMEOUT_S
    while True:
        code = child.poll() if child is not None else None
        try:
            document = client.get("/v1/coordinator", timeout_s=5.0)
            break
        except CoordinatorUnreachable as e:
            # Two `orch up` at the same time start two coordinators; one gets the journal, and both calls use it. A
            # process that has the journal but no socket is starting or ending; a second one would be refused.
            if code is not None and not another_runs(environment):
                raise did_not_start(environment, log_from, f"exited with code {code}") from e
            if environment.now() >= deadline:
                raise did_not_start(
                    environment, log_from, f"did not answer within {duration(START_TIMEOUT_S)}"
                ) from e
            if child is None and not another_runs(environment):
                child = spawn(command or coordinator_command(), environment)
        environment.pause(_POLL_EVERY_S)
    environment.say(f"Coordinator started (pid {document.get('pid')}); it keeps running in the background")
    return document, True


def spawn(command: list[str], environment: Environment) -> subprocess.Popen[bytes]:
    """Start a coordinator in its own session, so that it outlives the terminal. Its output goes to its log."""
    log = os.open(environment.paths.coordinator_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=environment.paths.state_dir,
            env={
                **environment.environ,
                # The path is made absolute, since a relative one would mean another directory in that process.
                "ORCH_STATE_DIR": environment.paths.state_dir,
                "ORCH_RUNTIME_DIR": environment.paths.runtime_dir,
            },
            start_new_session=True,
        )
    finally:
        os.close(log)


def another_runs(environment: Environment) -> bool:
    """Return whether some process holds the journal's lock."""
    import fcntl

    try:
        lock = os.open(environment.paths.lock, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def did_not_start(
    environment: Environment, log_from: int, what: str, *, still: str = ""
) -> CoordinatorUnreachable:
    """Return the error with the last lines of the new coordinator's log. `still`: the one that is still running."""
    path = environment.paths.coordinator_log
    lines = log_tail(path, log_from)
    output = ":" + "".join(f"\n  {line}" for line in lines) if lines else "; its log is empty"
    who = f"{still}; the new coordinator" if still else "the coordinator"
    return CoordinatorUnreachable(f"{who} {what}{output}", hint=f"its log: {path}")


def log_tail(path: str, start: int) -> list[str]:
    """Return the last lines after byte `start`."""
    try:
        with open(path, "rb") as file:
            file.seek(start)
            lines = file.read().decode("utf-8", "replace").splitlines()
    except FileNotFoundError:
        return []
    return lines[-_LOG_LINES:]


def log_size(environment: Environment) -> int:
    """Return the size of the coordinator's log, where its next line begins."""
    try:
        return os.stat(environment.paths.coordinator_log).st_size
    except FileNotFoundError:
        return 0
