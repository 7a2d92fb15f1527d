"""The coordinator's own life, with real processes on this machine: handed over, lost, and found again."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import orchestrator
from orchestrator import __version__
from orchestrator.core.state.run import Run
from orchestrator.head.journal.format import VERSION
from orchestrator.head.journal.states import dump_run, read_run, unpacked
from tests.cluster.cluster import Cluster, wait_until

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
    wait_until(lambda: cluster.coordinator() not in (None, before), "another coordinator")
    after = cluster.coordinator()
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


@pytest.mark.fault(81)
def test_one_flipped_bit_of_the_log_is_never_no_runs_and_never_a_second_gang(local_cluster: Cluster) -> None:
    cluster = local_cluster
    spec = cluster.spec("--steps", "100000")
    run_id = cluster.ok("up", spec).strip()
    before = cluster.wait_step(5)
    cluster.kill_coordinator()
    log = cluster.directory / "state" / "journal.db-wal"
    data = bytearray(log.read_bytes())
    data[40] ^= 1
    log.write_bytes(data)
    for command in (["up", spec], ["coordinator", "start"], ["gc"]):
        refused = cluster.orch(*command)
        assert refused.returncode != 0, command
        assert "is damaged: the last" in refused.stderr, command
        assert "orch recover" in refused.stderr, command
    done = json.loads(cluster.ok("recover", "--yes", "--json"))
    assert [(run["run_id"], run["recovered"]) for run in done["runs"]] == [(run_id, True)], (
        "from its own copy"
    )
    after = cluster.wait_step(before["global_step"] + 5)
    assert [task["pid"] for task in after["tasks"]] == [task["pid"] for task in before["tasks"]]


@pytest.mark.fault(81)
def test_a_journal_without_a_run_that_was_begun_here_is_refused(local_cluster: Cluster) -> None:
    cluster = local_cluster
    spec = cluster.spec("--steps", "100000")
    run_id = cluster.ok("up", spec).strip()
    cluster.wait_step(5)
    cluster.kill_coordinator()
    for file in (cluster.directory / "state").glob("journal.db*"):
        file.unlink()
    refused = cluster.orch("up", spec)
    assert refused.returncode != 0
    assert f"it does not have {run_id}, which was begun on this head node" in refused.stderr
    assert "orch recover" in refused.stderr
    cluster.ok("recover", "--yes")
    assert cluster.run()["run_id"] == run_id


@pytest.mark.fault(81)
def test_a_head_that_came_back_from_an_old_copy_starts_no_second_gang(local_cluster: Cluster) -> None:
    """All that the head has fits together: only the hosts know of the run."""
    cluster = local_cluster
    spec = cluster.spec("--steps", "100000")
    cluster.ok("coordinator", "start")
    cluster.ok("coordinator", "stop")
    state, copy = cluster.directory / "state", cluster.directory / "copy"
    shutil.copytree(state, copy)
    run_id = cluster.ok("up", spec).strip()
    before = cluster.wait_step(5)
    cluster.kill_coordinator()
    shutil.rmtree(state)
    shutil.copytree(copy, state)
    for args, code in ((["status"], 3), (["up", spec], 6), (["status"], 0)):
        told = cluster.orch(*args)
        assert told.returncode == code, told.stderr
        assert f"{run_id} " in told.stderr
        assert "its journal does not have it" in told.stderr
        assert "orch recover --hosts" in told.stderr
        assert "No runs yet" not in told.stdout
    cluster.ok("coordinator", "stop")
    cluster.ok("recover", "--hosts", spec, "--yes")
    after = cluster.wait_step(before["global_step"] + 5)
    assert [task["pid"] for task in after["tasks"]] == [task["pid"] for task in before["tasks"]]
    assert "its journal does not have it" not in cluster.orch("status").stderr


@pytest.mark.fault(89)
def test_an_effect_that_fails_on_the_head_touches_no_run_and_no_later_start(local_cluster: Cluster) -> None:
    """At the end of a run its secrets cannot be removed: a directory stands in the place of the file."""
    cluster = local_cluster
    token = cluster.directory / "token"
    token.write_text("hunter2-hunter2")
    token.chmod(0o600)
    secret = cluster.spec("--steps", "100000", name="secret", secrets={"TOKEN": str(token)})
    run_id = cluster.ok("up", secret).strip()
    cluster.ok("up", cluster.spec("--steps", "100000", ports="21000-21099", checkpoint=False))
    cluster.wait_step(5)
    file = cluster.directory / "state" / "secrets" / f"{run_id}.json"
    file.unlink()
    (file / "in-the-way").mkdir(parents=True)
    cluster.ok("kill", "secret")

    def failed() -> list[dict[str, Any]]:
        shown: list[dict[str, Any]] = json.loads(cluster.ok("coordinator", "status", "--json"))["effects"]
        return shown

    wait_until(lambda: bool(failed()), "the failed effect is shown")
    (shown,) = failed()
    assert (shown["effect"], shown["run"]) == ("remove its secrets", run_id)
    said = f"{run_id}: could not remove its secrets: [Errno 21] Is a directory: '{file}'"
    assert said in shown["sentence"]
    assert said in cluster.ok("coordinator", "status")
    before = cluster.run()
    assert before["phase"] == "RUNNING"
    cluster.kill_coordinator()
    cluster.ok("coordinator", "start")
    after = cluster.wait_step(before["global_step"] + 5)
    assert [task["pid"] for task in after["tasks"]] == [task["pid"] for task in before["tasks"]]
    wait_until(lambda: bool(failed()), "the next coordinator finds it, too")
    (file / "in-the-way").rmdir()
    file.rmdir()
    file.touch()
    wait_until(lambda: not failed(), "it is tried again", timeout=30)
    assert not file.exists()


@pytest.mark.fault(80)
def test_a_hosts_record_decides_nothing_that_the_head_starts_contacts_or_pushes(
    local_cluster: Cluster,
) -> None:
    """The host has edited its record: another script and working directory, another host of the head's own."""
    cluster = local_cluster
    spec = cluster.spec("--steps", "100000")
    run_id = cluster.ok("up", spec).strip()
    cluster.wait(lambda run: run["checkpoint"] is not None)
    lose_the_journal(cluster)
    evil = cluster.directory / "evil"
    evil.mkdir()
    (evil / "train.py").write_text(f"open({str(evil / 'ran')!r}, 'w').close()\n")
    (record,) = cluster.directory.rglob("record.json")

    def edited(change: Callable[[Run], Run]) -> None:
        kept = json.loads(record.read_text())
        run = read_run(unpacked(kept["state"]))
        kept.update(state=dump_run(change(run)), revision=1 << 40)
        record.write_text(json.dumps(kept))

    def with_another_host(run: Run) -> Run:
        more = replace(run.plan.hosts[0], name="intruder", address="203.0.113.9")
        plan = replace(run.plan, hosts=(*run.plan.hosts, more))
        return replace(run, plan=plan, hosts=(*run.hosts, replace(run.hosts[0], name="intruder")))

    genuine = record.read_text()
    edited(with_another_host)
    (shown,) = json.loads(cluster.ok("recover", "--hosts", spec, "--yes", "--json"))["runs"]
    assert (shown["recovered"], shown["lives_on"]) == (False, ["here"])
    assert "it has no host intruder" in shown["why"]
    assert {told["phase"] for told in shown["told"]} == {"running"}
    record.write_text(genuine)
    edited(lambda run: replace(run, plan=replace(run.plan, workdir=str(evil), args=("--evil",))))
    (taken,) = json.loads(cluster.ok("recover", "--hosts", spec, "--yes", "--json"))["runs"]
    assert taken["recovered"]
    before = cluster.wait(lambda run: run["phase"] == "RUNNING" and run["global_step"])
    os.kill(before["tasks"][1]["pid"], signal.SIGKILL)
    cluster.wait(lambda run: run["restarts"] == 1 and run["phase"] == "RUNNING" and run["global_step"])
    assert not (evil / "ran").exists(), "what started anew is the script of the person's spec"
    cluster.ok("kill", run_id)


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
