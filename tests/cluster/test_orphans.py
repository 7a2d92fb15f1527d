"""`orch gc`: what is left of runs that nobody knows goes, and what somebody drives stays."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.checkpoints import claims
from tests.cluster.cluster import Cluster, wait_until

STRANGER = "stranger-20200101-000000"


@pytest.fixture
def other(local_cluster: Cluster, tmp_path: Path) -> Iterator[Cluster]:
    """Another head node, with the same host."""
    made = Cluster(tmp_path / "other")
    made.directory.mkdir()
    made.env["ORCH_HOST_DIR"] = local_cluster.env["ORCH_HOST_DIR"]
    yield made
    made.orch("coordinator", "stop")
    made._short.cleanup()


def unwatched_for_long(cluster: Cluster, run_id: str) -> None:
    """No agent is there, and the last one was long ago."""
    path = cluster.directory / "host" / "runs" / run_id / claims.FILE
    wait_until(lambda: not claims.read(str(path.parent))[1], "the agent has ended")
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "looked_at": content["looked_at"] - 3600}))


def found(cluster: Cluster, *arguments: str) -> dict[str, list[dict[str, Any]]]:
    document: dict[str, list[dict[str, Any]]] = json.loads(cluster.ok("gc", "--json", *arguments))
    return document


def test_what_another_head_node_drives_is_left_alone(local_cluster: Cluster, other: Cluster) -> None:
    spec = local_cluster.spec(checkpoint=False)
    run_id = local_cluster.ok("up", spec).strip()
    before = local_cluster.wait_step(5)
    assert "No orphans found" in local_cluster.ok("gc"), "its own runs are known"
    other.ok("coordinator", "start")  # it has a journal, which knows nothing of that run
    looked = other.orch("gc", "--hosts", spec, "--yes")
    assert looked.returncode == 0
    assert f"{run_id}: left alone, it is driven by " in looked.stderr
    (item,) = found(other, "--hosts", spec, "--yes")["found"]
    assert (item["run"], item["state"]) == (run_id, "driven")
    local_cluster.kill_coordinator()
    (item,) = found(other, "--hosts", spec, "--yes")["found"]
    assert item["state"] == "driven", "its coordinator may come back any moment"
    local_cluster.ok("coordinator", "start")
    after = local_cluster.wait_step(before["global_step"] + 5)
    assert [task["pid"] for task in after["tasks"]] == [task["pid"] for task in before["tasks"]]
    assert after["restarts"] == 0
    shutil.rmtree(other.directory / "state")
    assert other.orch("coordinator", "stop").returncode == 0
    ended = other.orch("gc", "--hosts", spec, "--yes", "--even-alive", run_id)
    assert ended.returncode == 0, ended.stderr
    assert local_cluster.marked() == [], "unless the user says so"


def test_an_ended_run_is_removed_from_its_hosts_and_here_and_its_checkpoints_stay(
    local_cluster: Cluster,
) -> None:
    spec = local_cluster.spec(checkpoint=True)
    run_id = local_cluster.ok("up", spec).strip()
    local_cluster.wait_step(5)
    going = local_cluster.orch("rm", run_id, "--yes")
    assert (going.returncode, f"{run_id} goes on" in going.stderr) == (6, True)
    local_cluster.ok("kill", run_id)
    on_host = local_cluster.directory / "host" / "runs" / run_id
    here = local_cluster.directory / "state" / "runs" / run_id
    assert on_host.is_dir()
    assert here.is_dir()
    kept = sorted((local_cluster.directory / "ckpt").rglob("*"))
    assert kept
    again = local_cluster.ok("up", spec).strip()
    done = local_cluster.orch("rm", "t", "--yes")
    assert done.returncode == 0, done.stderr
    assert local_cluster.run()["run_id"] == again, "the name means its ended runs"
    local_cluster.ok("kill", again)
    kept = sorted((local_cluster.directory / "ckpt").rglob("*"))
    assert local_cluster.orch("rm", again, "--yes").returncode == 0
    assert f"Removed {run_id}" in done.stderr
    assert "directory" in done.stdout
    assert not on_host.exists()
    assert not here.exists()
    assert json.loads(local_cluster.ok("runs", "--json"))["runs"] == []
    assert "No orphans found" in local_cluster.ok("gc", "--hosts", spec)
    assert sorted((local_cluster.directory / "ckpt").rglob("*")) == kept


def test_orphans_are_shown_and_go_when_somebody_says_yes(local_cluster: Cluster, other: Cluster) -> None:
    spec = local_cluster.spec(checkpoint=False)
    run_id = local_cluster.ok("up", spec).strip()
    pids = sorted(task["pid"] for task in local_cluster.wait_step(5)["tasks"])
    local_cluster.kill_coordinator()
    shutil.rmtree(local_cluster.directory / "state")
    unwatched_for_long(local_cluster, run_id)
    without = other.orch("gc", "--hosts", spec, "--yes")
    assert f"{run_id}: left alone, it is alive" in without.stderr
    assert sorted(local_cluster.marked()) != []
    other.ok("coordinator", "start")
    named = ("--hosts", spec, "--even-alive", run_id)
    shown = other.orch("gc", *named)
    assert shown.returncode == 0
    assert run_id in shown.stdout
    assert "Nothing removed: no terminal to confirm on; add --yes" in shown.stderr
    document = found(other, "--hosts", spec, "--yes")
    assert document["removed"] == [], "nobody has named it"
    (item,) = document["found"]
    assert (item["state"], sorted(item["pids"])) == ("alive", pids)
    (gone,) = found(other, *named, "--yes")["removed"]
    assert gone["run"] == run_id
    assert local_cluster.marked() == []
    assert list((local_cluster.directory / "host" / "runs").iterdir()) == []
    assert "No orphans found" in other.ok("gc", "--hosts", spec)


def test_a_marked_process_without_a_directory_and_logs_that_nobody_knows(local_cluster: Cluster) -> None:
    cluster = local_cluster
    cluster.ok("coordinator", "start")
    spec = cluster.spec()
    lost = cluster.directory / "state" / "runs" / STRANGER
    lost.mkdir(parents=True)
    (lost / "worker-0.log").write_text("1.0 o of old\n")
    host_dir = os.path.realpath(cluster.env["ORCH_HOST_DIR"])
    marked = {"ORCH_HOST_DIR": host_dir, "ORCH_RUN": STRANGER, "ORCH_GENERATION": "3"}
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env=marked)
    others = {**marked, "ORCH_HOST_DIR": str(cluster.directory / "elsewhere")}
    foreign = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env=others)
    try:
        assert [item["what"] for item in found(cluster, "--hosts", spec, "--yes")["removed"]] == ["logs"]
        lost.mkdir(parents=True)
        (lost / "worker-0.log").write_text("1.0 o of old\n")
        assert sleeper.poll() is None, "whose it is nobody knows"
        named = ("--even-alive", STRANGER, "--yes")
        removed = found(cluster, "--hosts", spec, *named)["removed"]
        assert {(item["what"], item["state"]) for item in removed} == {
            ("processes only", "alive"),
            ("logs", "dead"),
        }
        assert sleeper.wait(5) == -9
        assert foreign.poll() is None, "of another host's directory"
        assert not lost.exists()
    finally:
        for process in (sleeper, foreign):
            process.kill()
            process.wait()


def test_what_cannot_be_is_said(local_cluster: Cluster) -> None:
    nowhere = local_cluster.orch("gc")
    assert (nowhere.returncode, "name a cluster spec" in nowhere.stderr) == (2, True)
    local_cluster.ok("coordinator", "start")
    unknown = local_cluster.orch("gc", "--hosts", local_cluster.spec(), "--even-alive", "no-such-run")
    assert (unknown.returncode, "nothing found of no-such-run" in unknown.stderr) == (2, True)
    local_cluster.ok("coordinator", "stop")
    for journal in (local_cluster.directory / "state").glob("journal.db*"):
        journal.write_bytes(b"\xff" * 4096)
    damaged = local_cluster.orch("gc", "--hosts", local_cluster.spec(), "--yes")
    assert damaged.returncode == 6
    assert "cannot tell orphans from known runs" in damaged.stderr
    for journal in (local_cluster.directory / "state").glob("journal.db*"):
        journal.unlink()


def test_uninstall_leaves_nothing_on_a_host_and_nothing_goes_while_a_run_is_alive(
    local_cluster: Cluster, tmp_path: Path
) -> None:
    cluster, host = local_cluster, tmp_path / "host"
    cluster.env["HOME"] = str(tmp_path / "home")
    made = tmp_path / "home/.local/share/orch/environments/abc/bin"
    made.mkdir(parents=True)
    spec = cluster.spec("--steps", "100000", tasks=1)
    cluster.ok("up", spec)
    there = sorted(host.rglob("*.json"))
    refused = cluster.orch("uninstall", "--hosts", spec, "--yes")
    assert refused.returncode == 6
    assert "not removed, for it is alive: t-" in refused.stderr
    assert set(there) <= set(host.rglob("*.json"))
    cluster.ok("kill", "t", "--yes")
    cluster.ok("coordinator", "stop")
    asked = cluster.orch("uninstall", "--hosts", spec)
    assert (asked.returncode, host.exists()) == (6, True), "there is no terminal to ask on"
    (host / "hosts/other-machine/runs").mkdir(parents=True)
    said = cluster.orch("uninstall", "--hosts", spec, "--yes")
    assert said.returncode == 0, said.stderr
    assert f"here: {host}, 1 run" in said.stdout
    assert [path.relative_to(host).as_posix() for path in sorted(host.rglob("*"))] == [
        "hosts",
        "hosts/other-machine",
        "hosts/other-machine/runs",
    ], "another machine that shares the home has its own turn"
    assert not made.parent.parent.exists()
    assert (tmp_path / "ckpt").exists(), "checkpoints stay"
    shutil.rmtree(host / "hosts/other-machine")
    cluster.ok("uninstall", "--hosts", spec, "--yes")
    assert not host.exists()


def test_gc_asks_a_host_that_only_a_run_with_a_broken_python_names(
    local_cluster: Cluster, tmp_path: Path
) -> None:
    spec = local_cluster.spec("--steps", "5", tasks=1, python=str(tmp_path / "no-such-python"))
    assert local_cluster.orch("up", spec, "--wait").returncode != 0
    done = local_cluster.orch("gc", "--dry-run")
    assert (done.returncode, "no-such-python" in done.stderr) == (0, False), done.stderr
