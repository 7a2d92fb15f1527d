"""The coordinator's own life, with real processes on this machine: handed over, lost, and found again."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

import orchestrator
from orchestrator import __version__
from orchestrator.head.journal.format import VERSION
from tests.cluster.cluster import Cluster

PACKAGE = Path(orchestrator.__file__).parent


def test_a_newer_coordinator_takes_over_and_no_task_is_touched(local_cluster: Cluster) -> None:
    cluster = local_cluster
    older = cluster.directory / "older"
    shutil.copytree(PACKAGE, older / "orchestrator", ignore=shutil.ignore_patterns("__pycache__"))
    (older / "orchestrator" / "__init__.py").write_text('__version__ = "0.0.9"\n')
    ours = cluster.env.get("PYTHONPATH", str(PACKAGE.parent))
    cluster.env["PYTHONPATH"] = str(older)
    cluster.ok("up", cluster.spec())
    before = cluster.wait_step(10)
    cluster.env["PYTHONPATH"] = ours
    looked = cluster.orch("status", "t")
    assert looked.stderr == (
        f"hint: the coordinator is orch 0.0.9 and this command is {__version__}; "
        "`orch coordinator restart` replaces it and leaves the tasks running\n"
    )
    done = json.loads(cluster.ok("coordinator", "restart", "--json"))
    assert (done["version"], done["previous"]["version"]) == (__version__, "0.0.9")
    assert done["epoch"] == done["previous"]["epoch"] + 1
    assert (done["tasks"], done["hosts"], done["restarts"], done["waiting"]) == (2, 1, 0, [])
    after = cluster.wait_step(before["global_step"] + 20)
    assert [task["pid"] for task in after["tasks"]] == [task["pid"] for task in before["tasks"]]
    assert (after["generation"], after["epoch"]) == (before["generation"], done["epoch"])
    assert cluster.orch("status", "t").stderr == ""


@pytest.mark.fault(39)
def test_who_could_not_read_the_journal_does_not_end_the_one_who_can(local_cluster: Cluster) -> None:
    cluster = local_cluster
    cluster.ok("coordinator", "start")
    pid = cluster.coordinator_pid
    with sqlite3.connect(cluster.directory / "state" / "journal.db") as db:
        db.execute("UPDATE meta SET value = ? WHERE key = 'version'", (str(VERSION + 1),))
    refused = cluster.orch("coordinator", "restart")
    assert refused.returncode == 6
    assert f"is of version {VERSION + 1}, written by orch {__version__}" in refused.stderr
    assert f"the running coordinator (pid {pid}) is unchanged" in refused.stderr
    assert cluster.coordinator_pid == pid


def test_a_handover_goes_on_whatever_becomes_of_the_command(local_cluster: Cluster) -> None:
    cluster = local_cluster
    cluster.ok("coordinator", "start")
    before = cluster.coordinator_pid
    command = [sys.executable, "-m", "orchestrator.cli.main", "coordinator", "restart"]
    with subprocess.Popen(command, env=cluster.env, stderr=subprocess.PIPE, text=True) as restart:
        assert restart.stderr is not None
        assert f"takes over from pid {before}" in restart.stderr.readline()
        restart.kill()
    deadline = time.monotonic() + 20
    while (after := cluster.coordinator()) in (None, before) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert after not in (None, before)
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as nobody:
        deaf = subprocess.run(
            command, env=cluster.env, stderr=nobody, stdout=subprocess.PIPE, text=True, check=False
        )
    assert (deaf.returncode, deaf.stdout[:25]) == (0, "Adopted 0 tasks on 0 host")
    assert cluster.coordinator_pid != after


def lose_the_journal(cluster: Cluster) -> None:
    cluster.kill_coordinator()
    shutil.rmtree(cluster.directory / "state")


def test_a_lost_journal_is_rebuilt_from_the_hosts_and_nothing_is_restarted(local_cluster: Cluster) -> None:
    cluster = local_cluster
    spec = cluster.spec("--steps", "100000")
    run_id = cluster.ok("up", spec).strip()
    before = cluster.wait(lambda run: run["checkpoint"] is not None)
    lose_the_journal(cluster)
    refused = cluster.orch("recover", "--hosts", spec)
    assert refused.returncode == 6
    assert "no terminal to confirm on; nothing has changed" in refused.stderr
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as nobody:
        command = [sys.executable, "-m", "orchestrator.cli.main", "recover", "--hosts", spec, "--yes"]
        unread = subprocess.run(
            command, env=cluster.env, stdout=nobody, stderr=subprocess.PIPE, text=True, check=False
        )
    assert unread.returncode == 141, "`| head` must not look like success where nothing was done"
    assert "stdout was closed before `orch recover` ended" in unread.stderr
    assert f"worker:1 on here: RUNNING, pid {before['tasks'][1]['pid']}" in refused.stdout
    assert not (cluster.directory / "state" / "journal.db").exists()
    done = json.loads(cluster.ok("recover", "--hosts", spec, "--yes", "--json"))
    assert [(run["run_id"], run["recovered"]) for run in done["runs"]] == [(run_id, True)]
    assert (done["handover"]["tasks"], done["handover"]["restarts"]) == (2, 0)
    after = cluster.wait_step(before["global_step"] + 20)
    assert [task["pid"] for task in after["tasks"]] == [task["pid"] for task in before["tasks"]]
    assert (after["run_id"], after["generation"], after["restarts"]) == (run_id, before["generation"], 0)
    assert after["epoch"] > before["epoch"], "or the hosts would not obey"
    again = cluster.orch("recover", "--hosts", spec, "--yes")
    assert (again.returncode, "a coordinator is running" in again.stderr) == (6, True)
    os.kill(after["tasks"][1]["pid"], signal.SIGKILL)  # what was rebuilt is enough to begin a generation
    last = cluster.wait(lambda run: run["restarts"] == 1 and run["phase"] == "RUNNING")
    assert last["generation"] == before["generation"] + 1
    assert last["seed"]["global_step"] > 0
    cluster.ok("kill", "t")
    lose_the_journal(cluster)
    (over,) = json.loads(cluster.ok("recover", "--hosts", spec, "--json"))["runs"]
    assert (over["recovered"], over["phase"], over["lives_on"]) == (False, "KILLED", [])
    assert over["why"] == "it has ended: KILLED: killed by the user"


@pytest.mark.fault(38)
@pytest.mark.lab
def test_a_damaged_journal_is_put_aside_and_rebuilt_over_ssh(cluster: Cluster) -> None:
    spec = cluster.spec()
    cluster.ok("up", spec)
    before = cluster.wait_step(10)
    reads_well = cluster.orch("recover", "--hosts", spec, "--yes")
    assert reads_well.returncode == 6
    cluster.kill_coordinator()
    journal = cluster.directory / "state" / "journal.db"
    nothing_lost = cluster.orch("recover", "--hosts", spec, "--yes")
    assert "nothing is lost: `orch coordinator start` adopts its runs" in nothing_lost.stderr
    journal.write_bytes(b"\xff" * 4096)
    Path(f"{journal}-wal").unlink()  # SQLite would heal the file from it
    started = cluster.orch("coordinator", "start")
    assert started.returncode != 0
    assert f"the journal {journal} is damaged" in started.stderr
    assert "orch recover --hosts" in started.stderr
    done = cluster.orch("recover", "--hosts", spec, "--yes")
    assert done.returncode == 0, done.stderr
    assert f"The old journal was renamed to {journal}.aside-" in done.stderr
    after = cluster.wait_step(before["global_step"] + 20)
    assert [task["pid"] for task in after["tasks"]] == [task["pid"] for task in before["tasks"]]
    assert after["restarts"] == 0
