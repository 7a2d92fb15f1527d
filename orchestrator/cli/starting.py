"""Starts a coordinator where none runs, and waits until it answers."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

from orchestrator.cli.session import Session
from orchestrator.core.errors import CoordinatorUnreachable

START_TIMEOUT_S = 30.0
_LOOK_EVERY_S = 0.05
_LOG_LINES = 12


def coordinator_command() -> list[str]:
    """The coordinator as a process of its own."""
    # -P: without it Python looks for modules in the current directory first, and a training directory may
    # well hold a `random.py`.
    return [sys.executable, "-P", "-m", "orchestrator.cli.main", "coordinator", "run"]


def ensure_coordinator(session: Session, *, command: list[str] | None = None) -> tuple[dict[str, Any], bool]:
    """The coordinator's document, and whether it was started by this call."""
    client = session.client()
    try:
        return client.get("/v1/coordinator"), False
    except CoordinatorUnreachable as e:
        # Something holds the socket and does not answer: a second coordinator would be refused anyway.
        if not isinstance(e.__cause__, (FileNotFoundError, ConnectionRefusedError)):
            raise
    session.paths.ensure()
    session.say("starting the coordinator …")
    log_from = log_size(session)
    child: subprocess.Popen[bytes] | None = None
    deadline = session.now() + START_TIMEOUT_S
    while True:
        code = child.poll() if child is not None else None
        try:
            document = client.get("/v1/coordinator", timeout_s=5.0)
            break
        except CoordinatorUnreachable as e:
            # Two `orch up` at once start two; one wins the journal, and both calls use the winner. One that has the
            # journal and no socket begins, or ends, and a second would be refused.
            if code is not None and not another_runs(session):
                raise did_not_start(session, log_from, f"ended with exit code {code}") from e
            if session.now() >= deadline:
                raise did_not_start(session, log_from, f"does not answer after {START_TIMEOUT_S:g} s") from e
            if child is None and not another_runs(session):
                child = spawn(command or coordinator_command(), session)
        session.pause(_LOOK_EVERY_S)
    session.say(f"the coordinator runs (pid {document.get('pid')}); it stays when this command ends")
    return document, True


def spawn(command: list[str], session: Session) -> subprocess.Popen[bytes]:
    """In a session of its own, so that no terminal takes it along; its talk goes to its log."""
    log = os.open(session.paths.coordinator_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=session.paths.state_dir,
            env={
                **session.environ,
                # The same places, whatever the environment makes of a relative path in another directory.
                "ORCH_STATE_DIR": session.paths.state_dir,
                "ORCH_RUNTIME_DIR": session.paths.runtime_dir,
            },
            start_new_session=True,
        )
    finally:
        os.close(log)


def another_runs(session: Session) -> bool:
    """Whether somebody holds the journal's lock."""
    import fcntl

    try:
        lock = os.open(session.paths.lock, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def did_not_start(session: Session, log_from: int, what: str, *, goes_on: str = "") -> CoordinatorUnreachable:
    """What a new coordinator said last. `goes_on`: who is there all the same."""
    path = session.paths.coordinator_log
    lines = log_tail(path, log_from)
    said = "".join(f"\n  {line}" for line in lines) if lines else " and has said nothing"
    who = f"{goes_on}; the new coordinator" if goes_on else "the coordinator"
    return CoordinatorUnreachable(f"{who} {what}{':' if lines else ''}{said}", hint=f"its log: {path}")


def log_tail(path: str, start: int) -> list[str]:
    """The last lines that were written behind byte `start`."""
    try:
        with open(path, "rb") as file:
            file.seek(start)
            lines = file.read().decode("utf-8", "replace").splitlines()
    except FileNotFoundError:
        return []
    return lines[-_LOG_LINES:]


def log_size(session: Session) -> int:
    """Where the next line of the coordinator's log will begin."""
    try:
        return os.stat(session.paths.coordinator_log).st_size
    except FileNotFoundError:
        return 0
