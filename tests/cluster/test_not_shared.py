"""Hosts without a shared directory: found before the start, or carried by the head node."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster

pytestmark = pytest.mark.lab


@pytest.mark.fault(45)
def test_row_45_a_directory_that_is_not_shared_is_found_before_the_start(cluster: Cluster) -> None:
    assert cluster.lab is not None
    for host in cluster.lab.hosts:
        host.own_directory(cluster.directory / "ckpt")
    refused = cluster.orch("up", cluster.spec(), "--wait")
    assert cluster.run()["problem"]["code"] == "not-shared"
    assert refused.returncode == 6
    assert "host-0 | host-1" in refused.stderr
    assert "shared: false" in refused.stderr
    assert cluster.run()["generation"] == 0


def test_the_head_carries_checkpoints_and_a_lost_chiefs_host_takes_none_away(cluster: Cluster) -> None:
    assert cluster.lab is not None
    ckpt = cluster.directory / "ckpt"
    own = [host.own_directory(ckpt) for host in cluster.lab.hosts]
    hosts = cluster.hosts(3)
    hosts[2]["spare"] = True
    cluster.ok("up", cluster.spec(hosts=hosts, checkpoint={"shared": False}))
    before = cluster.wait(lambda run: run["checkpoint"] is not None)
    assert not any(ckpt.iterdir()), "nothing is shared"
    listed = json.loads(cluster.ok("ckpt", "ls", "t", "--json"))["checkpoints"]
    assert any((own[0] / Path(found["path"]).relative_to(ckpt)).exists() for found in listed)
    cluster.lab.hosts[0].cut()
    os.kill(before["tasks"][1]["pid"], signal.SIGSTOP)  # as TensorFlow: none gets further without the others
    try:
        after = cluster.wait(
            lambda run: run["generation"] > before["generation"] and run["phase"] == "RUNNING", timeout=60
        )
    finally:
        cluster.lab.hosts[0].heal()
    assert after["tasks"][0]["host"] == "host-2"
    given = int(cluster.events(kind="resumed")[-1]["data"]["global_step"])
    assert given >= before["checkpoint"]["global_step"]
    cluster.wait_step(given + 20)
    for task in ("worker:0", "worker:1"):
        assert f"{task} starts at step {given}, restart 1" in cluster.ok("logs", "t", task)
    again = cluster.wait(lambda run: run["checkpoint"]["global_step"] > given, timeout=60)
    assert again["restarts"] == 1
