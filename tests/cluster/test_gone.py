"""A host that is gone for good, as its user says: nobody waits for it, and if it is back, nothing goes on there."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from orchestrator.both import process
from tests.cluster.cluster import Cluster, wait_until
from tests.cluster.lab import LabHost, can_cut

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(not can_cut(), reason="hosts cannot be cut off without network namespaces"),
]


def living(*pids: int) -> list[int]:
    return [pid for pid in pids if process.identity(pid) is not None]


def linked(cluster: Cluster) -> set[str]:
    document = json.loads(cluster.ok("coordinator", "status", "--json"))
    return set(document["hosts"])


@pytest.mark.fault(71)
def test_row_71_a_host_that_is_gone_for_good_owes_no_proof_and_is_swept_if_it_comes_back(
    cluster: Cluster, victim: Callable[[int], LabHost]
) -> None:
    spec = cluster.spec()
    run_id = cluster.ok("up", spec).strip()
    before = cluster.wait_step(20)
    there = before["tasks"][1]["pid"]
    answers = cluster.orch("drain", "host-1", "--gone")
    assert (answers.returncode, "host-1 answers: it is not gone" in answers.stderr) == (6, True)
    cut = victim(1)
    cut.cut()
    cluster.wait(lambda run: run["hosts"][1]["link"] == "UNREACHABLE")
    killed = cluster.orch("kill", "t", timeout=120)
    assert (killed.returncode, "could not check host-1" in killed.stderr) == (4, True)
    assert "host-1" in linked(cluster), "it is waited for"
    said = cluster.orch("drain", "host-1", "--gone")
    assert said.returncode == 0, said.stderr
    assert "host-1 is gone for good, as the user said at 20" in said.stdout
    assert run_id in said.stdout
    run = cluster.run()
    assert run["proof"]["unreachable"] == []
    assert "as the user said at" in run["proof"]["gone"]["host-1"]
    for shown in ("status", "why"):
        assert "as the user said at" in cluster.ok(shown, "t"), shown
    wait_until(lambda: linked(cluster) == set(), "nobody connects to it any more")
    cluster.kill_coordinator()
    cluster.ok("coordinator", "start")
    assert linked(cluster) == set()
    assert living(there) == [there], "it trains on, cut off"
    cut.heal()
    cluster.ok("undrain", "host-1")
    wait_until(lambda: living(there) == [], "its leftover processes are ended")
    wait_until(lambda: "host-1" in cluster.run()["proof"]["hosts"], "and the proof is there")


@pytest.mark.fault(71)
def test_row_71_what_is_left_on_a_host_that_came_back_ends_when_it_is_used_again(
    cluster: Cluster, victim: Callable[[int], LabHost]
) -> None:
    spec = cluster.spec()
    cluster.ok("up", spec)
    there = cluster.wait_step(20)["tasks"][1]["pid"]
    cut = victim(1)
    cut.cut()
    cluster.wait(lambda run: run["hosts"][1]["link"] == "UNREACHABLE")
    cluster.orch("kill", "t", timeout=120)
    cluster.ok("drain", "host-1", "--gone")
    assert living(there) == [there]
    cut.heal()
    cluster.ok("up", spec)
    after = cluster.wait_step(20)
    wait_until(lambda: living(there) == [], "its leftover processes are ended")
    assert set(cluster.marked()) == {task["pid"] for task in after["tasks"]}
