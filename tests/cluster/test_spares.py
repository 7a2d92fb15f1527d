"""A lost host's tasks go to a spare, or fewer workers go on; a host is drained: real sshds, real cuts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.lab import LabHost
from tests.faults.times import FaultTimes

pytestmark = pytest.mark.lab

QUICK = {"heartbeat": "0.3s", "unreachable_after": "1.5s", "lost_after": "3s", "kill_grace": "3s"}


def places(run: dict[str, Any]) -> dict[str, str]:
    return {task["task"]: task["host"] for task in run["tasks"]}


def states(run: dict[str, Any]) -> dict[str, str]:
    return {host["host"]: host["state"] for host in run["hosts"]}


def with_a_spare(cluster: Cluster) -> list[dict[str, Any]]:
    *hosts, last = cluster.hosts(3)
    return [*hosts, {**last, "spare": True}]


@pytest.mark.fault(25)
def test_a_host_cut_off_from_everyone_is_replaced_by_the_spare(
    cluster: Cluster, victim: Callable[[int], LabHost], fault_times: FaultTimes
) -> None:
    cluster.ok("up", cluster.spec("--lockstep", hosts=with_a_spare(cluster), timing=QUICK))
    before = cluster.wait(lambda run: run["checkpoint"] is not None and states(run)["host-2"] == "spare")
    host = victim(1)
    fault_times.inject(before["generation"])
    host.cut()
    after = fault_times.wait_again(cluster)
    assert places(after) == {"worker:0": "host-0", "worker:1": "host-2"}
    assert (states(after)["host-1"], after["restarts"]) == ("lost", 1)
    assert "LOST" not in {task["phase"] for task in after["tasks"]}
    (resumed,) = cluster.events(kind="resumed")
    assert resumed["data"]["global_step"] >= before["checkpoint"]["global_step"]
    (moved,) = cluster.events(kind="moved")
    assert "the tasks of host-1 are on host-2, since host-1 is lost" in moved["message"]
    assert "host-1 lost" in cluster.ok("status")
    host.heal()
    back = cluster.wait(lambda run: states(run)["host-1"] == "spare", timeout=30)
    assert (back["generation"], places(back)) == (after["generation"], places(after)), "nobody moves back"
    assert cluster.orch("kill", "t").returncode == 0
    assert set(cluster.run()["proof"]["hosts"]) == {"host-0", "host-1", "host-2"}


@pytest.mark.fault(25)
def test_without_a_spare_fewer_go_on_and_grow_back_at_a_checkpoint(
    cluster: Cluster, victim: Callable[[int], LabHost], fault_times: FaultTimes
) -> None:
    types = {"worker": {"replicas": 3, "replicas_min": 2}}
    cluster.ok("up", cluster.spec("--lockstep", tasks=3, types=types, timing=QUICK))
    before = cluster.wait(lambda run: run["checkpoint"] is not None)
    host = victim(0)
    fault_times.inject(before["generation"])
    host.cut()
    fewer = fault_times.wait_again(cluster)
    assert places(fewer) == {"worker:0": "host-1", "worker:1": "host-2"}, (
        "numbered anew, and worker:0 is there"
    )
    assert "2 of 3 workers: the global batch is 2/3 of what it was" in fewer["reason"]
    host.heal()
    grown = cluster.wait(lambda run: len(run["tasks"]) == 3 and run["phase"] == "RUNNING", timeout=60)
    assert places(grown) == {"worker:0": "host-0", "worker:1": "host-1", "worker:2": "host-2"}
    resumed = [event["data"]["global_step"] for event in cluster.events(kind="resumed")]
    assert resumed == sorted(resumed), "never back behind what was verified"
    assert cluster.events(kind="fewer")
    assert cluster.events(kind="grown")


@pytest.mark.fault(66)
def test_row_66_a_lost_host_is_replaced_although_its_peers_step_on_by_themselves(
    cluster: Cluster, victim: Callable[[int], LabHost], fault_times: FaultTimes
) -> None:
    spec = cluster.spec(strategy="processes", hosts=with_a_spare(cluster), timing=QUICK)
    cluster.ok("up", spec)
    before = cluster.wait(lambda run: run["checkpoint"] is not None and states(run)["host-2"] == "spare")
    fault_times.inject(before["generation"])
    victim(1).cut()
    during = cluster.wait(lambda run: run["tasks"][1]["phase"] == "UNREACHABLE")
    cluster.wait(lambda run: run["generation"] == 1 and run["global_step"] > during["global_step"] + 20)
    fault_times.noticed_by(cluster.events(kind="host-unreachable"))
    after = fault_times.wait_again(cluster)
    assert places(after) == {"worker:0": "host-0", "worker:1": "host-2"}
    assert (states(after)["host-1"], after["restarts"]) == ("lost", 1)
    (resumed,) = cluster.events(kind="resumed")
    assert resumed["data"]["global_step"] >= before["checkpoint"]["global_step"]


def test_a_host_is_drained_and_let_in_again(cluster: Cluster) -> None:
    cluster.ok("up", cluster.spec(hosts=with_a_spare(cluster), timing=QUICK))
    before = cluster.wait(lambda run: run["checkpoint"] is not None and states(run)["host-2"] == "spare")
    said = cluster.ok("drain", "host-1", "--now")
    assert said == f"host-1 is drained for {before['run_id']}; stopping worker:1\n"
    after = cluster.wait(lambda run: run["generation"] > before["generation"] and run["phase"] == "RUNNING")
    assert places(after) == {"worker:0": "host-0", "worker:1": "host-2"}
    assert states(after)["host-1"] == "drained"
    refused = cluster.orch("drain", "host-0")
    assert refused.returncode == 6
    assert "host-0 cannot be drained: no other host that is ready has room for worker:0" in refused.stderr
    assert "it can take tasks" in cluster.ok("undrain", "host-1")
    assert states(cluster.run())["host-1"] == "spare"
    assert cluster.orch("drain", "host-9").returncode == 2


@pytest.mark.long  # here a spare replaces a lost host, and test_pool.py places runs on the hosts of a pool
def test_a_drained_host_and_then_a_lost_one_are_replaced_by_free_hosts_of_the_pool(
    cluster: Cluster, victim: Callable[[int], LabHost], fault_times: FaultTimes
) -> None:
    """No host is a spare: what others do not use stands in, and what a run has left is free for the next one."""
    hosts = [{**host, "slots": 1} for host in cluster.hosts(3)]
    types = {"worker": {"replicas": 2}}
    cluster.ok("up", cluster.spec("--lockstep", hosts=hosts, types=types, timing=QUICK))
    before = cluster.wait(lambda run: run["checkpoint"] is not None)
    assert places(before) == {"worker:0": "host-0", "worker:1": "host-1"}
    cluster.ok("drain", "host-1")
    moved = cluster.wait(lambda run: run["generation"] > before["generation"] and run["phase"] == "RUNNING")
    assert places(moved) == {"worker:0": "host-0", "worker:1": "host-2"}
    assert states(moved)["host-1"] == "drained"
    refused = cluster.orch("drain", "host-0")
    assert refused.returncode == 6, "there is no fourth host"
    cluster.ok("undrain", "host-1")
    again = cluster.wait(lambda run: run["checkpoint"]["global_step"] > moved["checkpoint"]["global_step"])
    assert places(again) == places(moved), "nobody moves back"
    fault_times.inject(again["generation"])
    host = victim(0)
    host.cut()
    after = fault_times.wait_again(cluster)
    assert places(after) == {"worker:0": "host-1", "worker:1": "host-2"}
    assert states(after)["host-0"] == "lost"
    host.heal()
    cluster.wait(lambda run: "lost" not in states(run).values(), timeout=30)
    saves = {"dir": str(cluster.directory / "u")}
    one = cluster.spec(name="u", hosts=hosts, types={"worker": {"replicas": 1}}, checkpoint=saves)
    cluster.ok("up", one)
    assert [task["host"] for task in (cluster.shown("u") or {})["tasks"]] == ["host-0"]
