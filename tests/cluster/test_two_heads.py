"""Two head nodes over the same hosts: who drives what is asked, said, and changed only by a person's word."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.cluster import Cluster, digests, lab_of, wait_until

pytestmark = pytest.mark.lab


def pids(run: dict[str, Any]) -> list[int]:
    return [task["pid"] for task in run["tasks"]]


def trains_on(cluster: Cluster, before: dict[str, Any]) -> None:
    """Check that the same processes make steps."""
    after = cluster.wait_step((before["global_step"] or 0) + 20)
    assert pids(after) == pids(before)
    assert (after["restarts"], after["generation"]) == (0, before["generation"])


@pytest.mark.fault(62)
def test_row_62_what_another_head_drives_is_refused_with_its_owner_and_nothing_is_started(
    cluster: Cluster, second: Cluster
) -> None:
    spec = cluster.spec()
    run_id = cluster.ok("up", spec).strip()
    before = cluster.wait_step(20)
    refused = second.orch("up", spec)
    assert refused.returncode == 6, refused.stderr
    owner = json.loads(cluster.ok("coordinator", "status", "--json"))["owner"]
    assert f"{run_id} is driven by {owner['user']}@{owner['head']} since 20" in refused.stderr
    assert "its coordinator watches it now" in refused.stderr
    assert "--take-over" in refused.stderr
    assert sorted(cluster.marked()) == sorted(pids(before)), "nothing was started"
    cluster.kill_coordinator()  # it may come back any moment
    again = second.orch("up", spec)
    assert (again.returncode, f"{run_id} is driven by" in again.stderr) == (6, True), again.stderr
    other = cluster.spec(name="other")
    beside = second.orch("up", other)
    assert beside.returncode == 6, beside.stderr
    assert f"it saves into {cluster.directory / 'ckpt'}" in beside.stderr
    cluster.ok("coordinator", "start")
    trains_on(cluster, before)
    assert cluster.orch("kill", "t").returncode == 0
    second.ok("up", other)
    second.orch("kill", "other", "--force")


@pytest.mark.fault(62)
def test_row_62_a_lost_journal_makes_another_owner(cluster: Cluster) -> None:
    spec = cluster.spec()
    run_id = cluster.ok("up", spec).strip()
    before = cluster.wait_step(20)
    cluster.kill_coordinator()
    shutil.rmtree(cluster.directory / "state")
    refused = cluster.orch("up", spec)
    assert refused.returncode == 6, refused.stderr
    assert f"{run_id} is driven by" in refused.stderr
    assert "orch recover" in refused.stderr
    cluster.ok("coordinator", "stop")
    recovered = cluster.orch("recover", "--hosts", spec, "--yes")
    assert recovered.returncode == 0, recovered.stderr
    trains_on(cluster, before)


@pytest.mark.fault(62)
def test_row_62_what_is_taken_over_has_ended_before_another_begins(cluster: Cluster, second: Cluster) -> None:
    spec = cluster.spec("--talk", restart={"backoff": "0.2s"})
    run_id = cluster.ok("up", spec).strip()
    before = cluster.wait(lambda run: run["checkpoint"] is not None)
    unasked = second.orch("up", spec, "--take-over")
    assert unasked.returncode == 6
    assert "no terminal to confirm on" in unasked.stderr
    assert sorted(cluster.marked()) == sorted(pids(before))
    taken = second.orch("up", spec, "--take-over", "--yes")
    assert taken.returncode == 0, taken.stderr
    assert f"{run_id} is driven by" in taken.stderr, "it is shown first"
    mine = second.wait_step(before["checkpoint"]["global_step"] + 20)
    assert mine["run_id"] != run_id
    assert mine["generation"] > before["generation"]
    assert set(cluster.marked()) == set(pids(mine)), "one gang, and no other"
    wait_until(lambda: (cluster.shown() or {}).get("phase") == "FAILED", "the first head gives up")
    assert "has taken over" in cluster.run()["reason"], cluster.run()["reason"]
    old = cluster.directory / "ckpt" / f"gen-{before['generation']:06d}"
    kept = digests(old)
    trains_on(second, mine)
    assert digests(old) == kept
    assert second.orch("kill", "t").returncode == 0
    assert second.marked() == []


@pytest.mark.fault(63)
def test_row_63_gc_of_another_head_touches_nothing_that_lives(cluster: Cluster, second: Cluster) -> None:
    spec = cluster.spec()
    run_id = cluster.ok("up", spec).strip()
    before = cluster.wait_step(20)
    cluster.kill_coordinator()
    for host in lab_of(cluster).hosts[:2]:
        unlooked_for_long(Path(host.host_dir) / "runs" / run_id / "owner.json")
    second.ok("coordinator", "start")
    wait_until(lambda: states(second, spec, run_id) == {"alive"}, "the agents of the first head have ended")
    looked = second.orch("gc", "--hosts", spec, "--yes")
    assert looked.returncode == 0, looked.stderr
    assert f"{run_id}: left alone, it is alive, and of" in looked.stderr
    cluster.ok("coordinator", "start")
    trains_on(cluster, before)


@pytest.mark.fault(64)
def test_row_64_a_host_whose_answer_is_too_long_is_not_one_without_runs(cluster: Cluster) -> None:
    spec = cluster.spec()
    run_id = cluster.ok("up", spec).strip()
    before = cluster.wait_step(20)
    cluster.kill_coordinator()
    shutil.rmtree(cluster.directory / "state")
    runs = Path(lab_of(cluster).hosts[1].host_dir) / "runs"
    many = [runs / f"{'x' * 180}-20260101-{number:06d}" for number in range(13000)]
    try:
        for directory in many:
            directory.mkdir()
        recovered = cluster.orch("recover", "--hosts", spec, "--yes", timeout=240)
        assert recovered.returncode == 4, recovered.stderr
        assert "host-1: it answered with an error: " in recovered.stderr
        assert "could not query host-1" in recovered.stderr
        status = json.loads(cluster.ok("coordinator", "status", "--json"))
        assert status["epoch"] > 1000, "host-1 may have obeyed a higher one than host-0"
        assert status["runs"] == [run_id]
        looked = cluster.orch("gc", "--hosts", spec, "--yes", timeout=240)
        assert (looked.returncode, "could not query host-1" in looked.stderr) == (4, True)
    finally:
        for directory in many:
            shutil.rmtree(directory, ignore_errors=True)
    trains_on(cluster, before)


def states(head: Cluster, spec: str, run_id: str) -> set[str]:
    document = json.loads(head.ok("gc", "--hosts", spec, "--dry-run", "--json"))
    return {item["state"] for item in document["found"] if item["run"] == run_id}


def unlooked_for_long(path: Path) -> None:
    """Make it look as if the last agent had been there an hour ago."""
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "looked_at": content["looked_at"] - 3600}))
