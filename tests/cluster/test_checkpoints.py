"""Checkpoints as people meet them: listed, pinned, gone back to; on a share that hangs, or that is none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cluster.cluster import Cluster

pytestmark = pytest.mark.lab


def listed(cluster: Cluster, *more: str) -> list[dict[str, Any]]:
    return list(json.loads(cluster.ok("ckpt", "ls", "t", "--json", *more))["checkpoints"])


def resumed_at(cluster: Cluster) -> int:
    return int(cluster.events(kind="resumed")[-1]["data"]["global_step"])


def test_a_person_looks_pins_and_goes_back_while_it_trains_and_when_it_has_ended(cluster: Cluster) -> None:
    cluster.ok("up", cluster.spec("--steps", "60", "--save-every", "20"), "--wait")
    ended = cluster.run()["checkpoint"]
    assert (ended["global_step"], ended["verified"]) == (60, True), (
        "the last, which no look had seen while it trained"
    )
    (first,) = listed(cluster)
    assert (first["global_step"], first["by"]["host"]) == (60, cluster.run()["tasks"][0]["host"])
    assert "step 60 of generation" in cluster.ok("ckpt", "pin", "t", "60")
    cluster.ok("up", cluster.spec("--steps", "5000", "--save-every", "20"), "--continue")
    assert resumed_at(cluster) == 60
    before = cluster.wait(lambda run: run["checkpoint"] is not None and run["checkpoint"]["global_step"] > 60)
    assert cluster.orch("ckpt", "verify", "t").returncode == 0
    refused = cluster.orch("ckpt", "rollback", "t", "--to", "60")
    assert (refused.returncode, "--restart" in refused.stderr) == (6, True)
    assert cluster.orch("ckpt", "rollback", "t", "--to", "61", "--restart").returncode == 2
    told = cluster.ok("ckpt", "rollback", "t", "--to", "60", "--restart")
    assert "restarting its tasks from it" in told
    after = cluster.wait(lambda run: run["generation"] > before["generation"] and run["phase"] == "RUNNING")
    assert resumed_at(cluster) == 60
    assert after["restarts"] == 1
    cluster.wait_step(100)
    aside = [found for found in listed(cluster) if found["set_aside"]]
    assert [found["generation"] for found in aside] == [before["generation"]]
    assert cluster.ok("kill", "t")
    forward = cluster.ok("ckpt", "rollback", "t", "--to", f"gen-{before['generation']}")
    assert "the next `orch up --continue` starts from it" in forward
    assert cluster.ok("up", cluster.spec("--steps", "5000", "--save-every", "20", "--pace", "0.01"))
    cluster.wait_phase("RUNNING")
    assert resumed_at(cluster) > 60


@pytest.mark.fault(117)
def test_a_loss_that_is_nan_takes_the_run_back_to_the_checkpoint_before_it(local_cluster: Cluster) -> None:
    options = ["--steps", "20", "--save-every", "10", "--pace", "0.5", "--nan-at", "11"]
    spec = local_cluster.spec(*options, "--nan-once", on_nonfinite="rollback")
    local_cluster.ok("up", spec, "--wait")
    (went,) = local_cluster.events(kind="rollback")
    assert went["message"].startswith("the run went back to step 10, generation 1: loss is nan since step 11")
    assert (resumed_at(local_cluster), local_cluster.run()["phase"]) == (10, "SUCCEEDED")


@pytest.mark.parametrize("policy", ["rollback", "stop"])
@pytest.mark.fault(117)
def test_an_exit_with_0_right_after_a_loss_that_is_nan_is_no_success(
    local_cluster: Cluster, policy: str
) -> None:
    """The chief is gone before the run can act on what its last step told."""
    options = ["--steps", "25", "--save-every", "10", "--pace", "0.05", "--nan-at", "25", "--nan-once"]
    local_cluster.orch("up", local_cluster.spec(*options, on_nonfinite=policy), "--wait")
    run = local_cluster.run()
    if policy == "stop":
        assert (run["phase"], run["first_cause"]["cause"]) == ("FAILED", "nonfinite")
    else:
        assert len(local_cluster.events(kind="rollback")) == 1, local_cluster.ok("events", "t")
        assert (resumed_at(local_cluster), run["phase"]) == (20, "SUCCEEDED")
