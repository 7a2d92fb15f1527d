"""Ctrl-C in each command that stays: a word, no traceback, and what it was about goes on as if nobody had looked."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.processes import is_alive
from tests.patience import comes, patient

pytestmark = pytest.mark.fault(54)

INTERRUPTED = 130


@contextlib.contextmanager
def staying(
    cluster: Cluster, *arguments: str, terminal: int | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Start a command that does not end by itself, in its own process group, as in a terminal."""
    command = subprocess.Popen(
        [sys.executable, "-m", "orchestrator.cli.main", *arguments],
        env={**cluster.env, "TERM": "xterm"},
        stdin=terminal,
        stdout=subprocess.PIPE if terminal is None else terminal,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # Under a CI that runs in the background SIGINT is ignored, and a child inherits that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        yield command
    finally:
        command.kill()
        command.communicate()


def line(stream: IO[str] | None) -> str:
    assert stream is not None
    return stream.readline()


def ctrl_c(command: subprocess.Popen[str]) -> str:
    """To the whole group, as the terminal sends it; what is said then."""
    os.killpg(command.pid, signal.SIGINT)
    _, said = command.communicate(timeout=patient(15))
    assert "Traceback" not in said
    return said


def test_while_up_waits_for_hosts_and_kill_for_its_proof(local_cluster: Cluster, tmp_path: Path) -> None:
    cluster, gate = local_cluster, tmp_path / "gate"
    slow = tmp_path / "slow-python"  # the host is not ready until the gate is there
    slow.write_text(
        f"#!/bin/sh\ntries=0\nuntil [ -e {gate} ] || [ $tries -ge 600 ]; do tries=$((tries+1)); sleep 0.05; done\n"
        f'exec {sys.executable} "$@"\n'
    )
    slow.chmod(0o755)
    spec = cluster.spec(python=str(slow), timing={"heartbeat": "0.5s", "kill_grace": "2s"})
    with staying(cluster, "up", spec, "--wait") as up:
        run_id = line(up.stdout).strip()
        while "submitted" not in line(up.stderr):  # from then on it waits
            pass
        said = ctrl_c(up)
    assert up.returncode == INTERRUPTED
    assert f"Detached; {run_id} keeps running" in said
    gate.touch()
    before = cluster.wait_step(5)
    assert (before["run_id"], before["restarts"]) == (run_id, 0)
    task = before["tasks"][0]["pid"]
    os.kill(task, signal.SIGSTOP)  # so that its end takes a while
    with staying(cluster, "kill", "t") as kill:
        assert "STOPPING" in line(kill.stderr)
        said = ctrl_c(kill)
    assert kill.returncode == INTERRUPTED
    assert "Detached; the kill continues" in said
    assert cluster.wait_phase("KILLED")["run_id"] == run_id
    assert not is_alive(task)
    assert cluster.orch("kill", "t").returncode == 0, "the same end state"


def _read_all(terminal: int, shown: bytearray) -> None:
    """As a terminal does: a program that nobody reads would wait. Until nobody has the other end any more."""
    with contextlib.suppress(OSError):
        while read := os.read(terminal, 4096):
            shown += read
    os.close(terminal)


def _wait_for(words: bytes, shown: bytearray) -> None:
    assert comes(lambda: words in shown, 20, 0.02), shown


def test_while_status_and_logs_look_on(local_cluster: Cluster) -> None:
    cluster = local_cluster
    cluster.ok("up", cluster.spec())
    with staying(cluster, "logs", "-f", "t") as logs:
        assert "starts at step 0" in line(logs.stdout)
        assert "Interrupted" in ctrl_c(logs)
    assert logs.returncode == INTERRUPTED
    ours, theirs = pty.openpty()
    shown = bytearray()
    threading.Thread(target=_read_all, args=(ours, shown), daemon=True).start()
    with staying(cluster, "status", "-w", terminal=theirs) as status:
        _wait_for(b"q quits", shown)
        ctrl_c(status)
        assert status.returncode == 0, "as good as q"
        _wait_for(b"\x1b[?1049l", shown)  # the screen is given back
    os.close(theirs)
    before = cluster.run()
    assert (before["phase"], before["restarts"]) == ("RUNNING", 0)
    cluster.wait_step(before["global_step"] + 5)


@pytest.mark.lab
def test_row_54_while_up_follows_a_run_on_other_hosts(cluster: Cluster) -> None:
    with staying(cluster, "up", cluster.spec(), "--follow") as following:
        before = cluster.wait_step(20)
        said = ctrl_c(following)
    assert following.returncode == 0, "it only detaches"
    assert "orch logs -f" in said
    after = cluster.wait_step(before["global_step"] + 20)
    assert (after["phase"], after["restarts"]) == ("RUNNING", 0)
