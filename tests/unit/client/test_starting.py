"""Starting a coordinator: real processes, standing in for one."""

from __future__ import annotations

import sys
from io import StringIO
from pathlib import Path

import pytest

from orchestrator.cli.session import Session
from orchestrator.client.starting import coordinator_command, ensure_coordinator
from orchestrator.core.errors import CoordinatorUnreachable
from tests.contract.fake_api import FakeApi

ANSWERS_ONCE = """
import os, socket
body = b'{"pid": %d}' % os.getpid()
with socket.socket(socket.AF_UNIX) as s:
    s.bind(os.environ["ORCH_RUNTIME_DIR"] + "/coordinator.sock")
    s.listen()
    c, _ = s.accept()
    c.recv(65536)
    c.sendall(b"HTTP/1.0 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(body) + body)
    c.close()
"""


@pytest.fixture
def session(tmp_path: Path) -> Session:
    environ = {"ORCH_STATE_DIR": str(tmp_path / "state"), "ORCH_RUNTIME_DIR": str(tmp_path / "run")}
    return Session(StringIO(), StringIO(), environ)


def test_one_that_runs_is_taken(session: Session) -> None:
    session.paths.ensure()
    with FakeApi(Path(session.paths.socket)):
        document, started = ensure_coordinator(session, command=["/does/not/exist"])
    assert (document["pid"], started) == (4711, False)


def test_one_is_started_and_waited_for(session: Session) -> None:
    document, started = ensure_coordinator(session, command=[sys.executable, "-c", ANSWERS_ONCE])
    assert started
    assert isinstance(session.err, StringIO)
    assert session.err.getvalue() == (
        "Starting the coordinator …\n"
        f"Coordinator started (pid {document['pid']}); it keeps running in the background\n"
    )


def test_one_that_dies_says_what_its_log_says(session: Session) -> None:
    session.paths.ensure()
    Path(session.paths.coordinator_log).write_text("of yesterday\n")
    with pytest.raises(CoordinatorUnreachable) as caught:
        ensure_coordinator(session, command=[sys.executable, "-c", "raise SystemExit('the disk is full')"])
    assert str(caught.value) == "the coordinator exited with code 1:\n  the disk is full"
    assert session.paths.coordinator_log in str(caught.value.hint)


def test_the_command_ignores_modules_of_the_current_directory() -> None:
    assert coordinator_command()[1:] == ["-P", "-m", "orchestrator.cli.main", "coordinator", "run"]
