"""Horovod on two hosts over real sshd: gloo finds the peers across the network, and comes back after a kill."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.cluster.cluster import Cluster
from tests.cluster.lab import Lab, can_cut

pytestmark = [pytest.mark.horovod, pytest.mark.lab, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
STEPS = 3000


@pytest.fixture
def two_hosts(tmp_path: Path) -> Iterator[Cluster]:
    """A coordinator over two hosts, each of which knows itself by a name that resolves to its address."""
    if not can_cut():
        pytest.skip("only root can make hosts with networks and names of their own")
    with Lab(2) as lab:
        for host in lab.hosts:
            host.own_name(f"server{host.index + 1}")
        made = Cluster(tmp_path, lab)
        yield made
        made.close()


def spec(cluster: Cluster, replicas: int, *args: str, slots: int = 2) -> str:
    """Return the spec of 4 x 4 ranks, cut down to these hosts."""
    document = yaml.safe_load((ROOT / "cluster_specs/horovod_4x4.yaml").read_text())
    run = document["run"]
    return cluster.spec(
        *args,
        hosts=[{**host, "slots": slots} for host in cluster.hosts(2)],
        script=run["script"],
        workdir=str(ROOT / "examples"),
        strategy=run["strategy"],
        types={"worker": replicas},
        python=os.environ["ORCH_HOROVOD_PYTHON"],
        env={"TF_CPP_MIN_LOG_LEVEL": "2"},
    )


def test_ranks_of_two_hosts_train_one_model_and_come_back_after_a_kill(two_hosts: Cluster) -> None:
    """Two ranks on each host, numbered machine by machine, as in the spec of 4 x 4."""
    cluster = two_hosts
    cluster.ok("up", spec(cluster, 4, "--steps", str(STEPS)), timeout=120)
    before = cluster.wait_step(300, timeout=150)
    assert [task["host"] for task in before["tasks"]] == ["host-0", "host-0", "host-1", "host-1"]
    os.kill(before["tasks"][3]["pid"], signal.SIGKILL)
    run = cluster.wait_phase("SUCCEEDED", "FAILED", timeout=200)
    log = cluster.ok("logs", "t")
    assert (run["phase"], run["restarts"], run["global_step"]) == ("SUCCEEDED", 1, STEPS), log
    given = cluster.events(kind="resumed")[0]["data"]["global_step"]
    for rank in range(4):
        assert f"rank {rank} of 4 starts at step 0\n" in log
        assert f"rank {rank} of 4 starts at step {given}\n" in log
    ended = re.findall(rf"is done at step {STEPS}, loss .*(rate [\d.]+, weights [\d.]+)", log)
    assert len(ended) == 4
    assert len(set(ended)) == 1, "averaged over the ranks of both hosts"
    assert ended[0].startswith("rate 0.2,"), "four times that of one rank, after the warm-up"


def test_a_host_whose_name_is_no_address_of_its_own_is_refused_and_trains_once_it_is(
    two_hosts: Cluster,
) -> None:
    cluster = two_hosts
    assert cluster.lab is not None
    host = cluster.lab.hosts[1]
    (host.dir / "hosts").write_text("127.0.0.1 localhost\n127.0.1.1 server2\n")
    host.restart_sshd()
    file = spec(cluster, 2, "--steps", "100", slots=1)
    refused = cluster.orch("up", file, timeout=60)
    assert refused.returncode == 1
    assert "server2, resolves to 127.0.1.1" in refused.stderr
    host.own_name("server2")
    done = cluster.orch("up", file, "--wait", timeout=150)
    assert done.returncode == 0, cluster.ok("logs", "t")
