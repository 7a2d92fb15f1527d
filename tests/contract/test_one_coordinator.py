"""One coordinator for a state directory, whatever the environment of who speaks to it: the real command line."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.head.node import holder
from tests.patience import comes, patient


class Head:
    """A user's home with a coordinator, a login session that has a runtime directory, and cron, which has none."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.runtime = home / "run"
        self.runtime.mkdir(mode=0o700)
        (home / "tmp").mkdir()
        # What `env -i` and cron leave
        self.cron = {"HOME": str(home), "PATH": os.environ["PATH"], "TMPDIR": str(home / "tmp")}
        self.login = {**self.cron, "XDG_RUNTIME_DIR": str(self.runtime)}
        self.state_dir = home / ".local/state/orch"

    def orch(self, env: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command in that environment alone."""
        command = [sys.executable, "-m", "orchestrator.cli.main", *words]
        return subprocess.run(
            command,
            env=env,
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=patient(60.0),
            check=False,
        )

    def document(self, env: dict[str, str]) -> dict[str, object]:
        """Return what the coordinator says of itself to a command in that environment."""
        done = self.orch(env, "coordinator", "status", "--json")
        assert done.returncode == 0, done.stderr
        found: dict[str, object] = json.loads(done.stdout)
        return found

    def pid(self) -> int:
        """Return the pid of the coordinator that lives."""
        known = holder.living(str(self.state_dir))
        assert known is not None
        return known.pid

    def started(self) -> int:
        """Start the coordinator in the login session, and return its pid."""
        assert self.orch(self.login, "coordinator", "start").returncode == 0
        return self.pid()


@pytest.fixture
def head() -> Iterator[Head]:
    with tempfile.TemporaryDirectory(prefix="orch-t-") as short:  # a socket's path must be short
        made = Head(Path(short).resolve())
        yield made
        known = holder.living(str(made.state_dir))
        if known is not None:
            os.kill(known.pid, signal.SIGKILL)
            comes(lambda: holder.living(str(made.state_dir)) is None, 10.0)


@pytest.mark.fault(114)
def test_cron_finds_the_coordinator_of_the_login_session(head: Head) -> None:
    pid = head.started()
    found = head.document(head.cron)
    assert (found["pid"], found["socket"]) == (pid, str(head.runtime / "orch/coordinator.sock"))
    again = head.orch(head.cron, "coordinator", "start")
    assert (again.returncode, f"already running (pid {pid})" in again.stderr) == (0, True)
    assert head.orch(head.cron, "status").returncode == 0
    restarted = head.orch(head.cron, "coordinator", "restart")
    assert restarted.returncode == 0, restarted.stderr
    assert head.document(head.login)["pid"] == head.pid() != pid
    stopped = head.orch(head.login, "coordinator", "stop")
    assert (stopped.returncode, "Coordinator stopped" in stopped.stderr) == (0, True)
    assert holder.living(str(head.state_dir)) is None
    none = head.orch(head.cron, "coordinator", "stop")
    assert (none.returncode, "No coordinator is running" in none.stderr) == (0, True)


@pytest.mark.fault(114)
@pytest.mark.parametrize("how", ["socket", "directory", "for good"])
def test_a_socket_that_vanished_is_made_again(head: Head, how: str) -> None:
    pid, socket = head.started(), head.runtime / "orch/coordinator.sock"
    if how == "socket":
        socket.unlink()
    else:
        shutil.rmtree(head.runtime)
    if how == "for good":
        head.runtime.write_text("no directory can be made here")
        socket = head.state_dir / "coordinator.sock"
    began = time.monotonic()
    for env in (head.login, head.cron):
        found = head.document(env)
        assert (found["pid"], found["socket"]) == (pid, str(socket))
    assert time.monotonic() - began < patient(15.0)
    assert stat.S_IMODE(os.stat(socket).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(socket.parent).st_mode) == 0o700
    stopped = head.orch(head.login, "coordinator", "stop")
    assert (stopped.returncode, f"stopped (pid {pid})" in stopped.stderr) == (0, True)
    assert not socket.exists()


@pytest.mark.fault(114)
def test_one_that_cannot_make_its_socket_again_is_named_and_no_other_is_started(head: Head) -> None:
    pid = head.started()
    os.kill(pid, signal.SIGSTOP)
    (head.runtime / "orch/coordinator.sock").unlink()
    lock = head.state_dir / "coordinator.lock"
    os.utime(lock, (time.time() - 600, time.time() - 600))  # it has not just been started
    began = time.monotonic()
    for words in (("coordinator", "stop"), ("coordinator", "start"), ("status",)):
        said = head.orch(head.cron, *words)
        assert (said.returncode, f"(pid {pid}) of {head.state_dir} runs" in said.stderr) == (3, True), (
            said.stderr
        )
        assert "o coordinator is running" not in said.stderr
    assert time.monotonic() - began < patient(30.0)
    os.kill(pid, signal.SIGCONT)
    assert head.document(head.cron)["pid"] == pid


@pytest.mark.parametrize(
    "content", ["", "12\n", "12\n{}", '12\n{"pid": 1}', "\0" * 80, '1\n{"boot_id": []}\n']
)
def test_a_lock_that_says_nothing_names_nobody(tmp_path: Path, content: str) -> None:
    (tmp_path / "coordinator.lock").write_text(content)
    assert holder.living(str(tmp_path)) is None
