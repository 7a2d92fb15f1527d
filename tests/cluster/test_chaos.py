"""`orch chaos`: each fault injected into a real run, and the table that it prints."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tests.cluster.cluster import Cluster
from tests.contract.agent_harness import Client, clean
from tests.contract.small_disk import mounted

QUICK = {"heartbeat": "0.2s", "unreachable_after": "1s", "lost_after": "30s", "stall_after": "2s"}


def test_every_fault_of_a_run_is_survived_and_measured(local_cluster: Cluster) -> None:
    spec = local_cluster.spec(chaos="allowed", timing=QUICK, restart={"backoff": "0.1s"})
    local_cluster.ok("up", spec)
    deadly = ["--kill", "worker:1", "--freeze", "worker:0", "--kill-shim", "worker:0", "--for", "60s"]
    harmless = ["--kill-agent", "here", "--cut", "here", "--for", "4s"]
    rows: list[dict[str, Any]] = []
    for faults in (deadly, harmless):
        answer = local_cluster.ok(
            "chaos", *faults, "--at-step", "20", "--every", "0.5s", "--json", timeout=120
        )
        rows += json.loads(answer)["faults"]
    assert [row["kind"] for row in rows] == ["kill", "freeze", "kill-shim", "kill-agent", "cut"]
    assert all(row["recovered"] for row in rows)
    assert rows[0]["step"] >= 20
    for row in rows:
        restarted = row["kind"] in ("kill", "freeze", "kill-shim")
        assert (row["again_s"] > 0) == restarted, row
        assert row["noticed_s"] is not None or row["kind"] == "kill-agent", row
    said = [event["message"] for event in local_cluster.events(kind="chaos")]
    assert len(said) == 5
    assert said[0].startswith("orch chaos: kill worker:1 on here: its process is killed")
    assert local_cluster.run()["restarts"] == 3  # the cut, longer than a stall, cost none
    # Of `here` the logs lie where the coordinator's journal does.
    refused = local_cluster.orch("chaos", "--fill", "here")
    assert refused.returncode == 6
    assert "on the very file system of the coordinator's state" in refused.stderr
    assert "ORCH_HOST_DIR" in refused.stderr
    assert len(local_cluster.events(kind="chaos")) == 5, "what was refused is not written down as done"


def test_a_host_with_a_disk_of_its_own_may_be_filled(local_cluster: Cluster, tmp_path: Path) -> None:
    with mounted(tmp_path / "small", megabytes=24) as disk:
        local_cluster.env["ORCH_HOST_DIR"] = str(disk.path / "host")
        local_cluster.ok("up", local_cluster.spec(chaos="allowed", timing=QUICK, checkpoint=False))
        local_cluster.wait_step(10)
        local_cluster.ok("chaos", "--fill", "here", "--for", "1s", timeout=60)
        assert local_cluster.run()["restarts"] == 0
        local_cluster.ok("kill", "t", "--force")


def test_a_run_that_does_not_allow_it_is_not_touched(local_cluster: Cluster) -> None:
    local_cluster.ok("up", local_cluster.spec())
    before = local_cluster.wait_step(1)
    refused = local_cluster.orch("chaos", "--kill", "worker:0")
    assert refused.returncode == 6
    assert "does not allow injected faults" in refused.stderr
    assert "chaos: allowed" in refused.stderr
    assert local_cluster.run()["restarts"] == before["restarts"] == 0
    for wrong in ([], ["--kill", "worker:0", "--random", "2"]):
        assert local_cluster.orch("chaos", *wrong).returncode == 2


def test_a_filled_disk_is_freed_by_itself_and_with_its_holder(tmp_path: Path) -> None:
    with mounted(tmp_path / "small", megabytes=8) as disk:
        host_dir = disk.path / "host"
        agent = Client(host_dir)
        try:
            filled = agent.ok("fault", fault="fill", for_s=2.0)["bytes"]
            assert filled > 0
            assert os.statvfs(disk.path).f_bavail == 0
            # No file lies on the disk that could be left behind.
            assert [path.name for path in disk.path.iterdir()] == ["host"]
            agent.until(lambda _: os.statvfs(disk.path).f_bavail > 0)
        finally:
            agent.close()
            clean(host_dir)
