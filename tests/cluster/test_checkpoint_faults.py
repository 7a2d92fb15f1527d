"""Checkpoints that are torn, not restored, or cannot be written."""

from __future__ import annotations

import pytest

from tests.cluster.cluster import Cluster

pytestmark = pytest.mark.lab


@pytest.mark.fault(42)
def test_row_42_a_torn_checkpoint_is_passed_over_and_named(cluster: Cluster) -> None:
    cluster.ok("up", cluster.spec("--steps", "100"), "--wait")
    first = cluster.run()["generation"]
    good = cluster.directory / "ckpt" / f"gen-{first:06d}" / "model.weights.h5"
    content = good.read_bytes()
    torn = cluster.directory / "ckpt" / f"gen-{first + 1:06d}"
    torn.mkdir()
    (torn / "model.weights.h5").write_bytes(content[: len(content) // 2])
    done = cluster.orch("up", cluster.spec("--steps", "200"), "--wait", timeout=60)
    assert done.returncode == 0, done.stderr
    assert cluster.run()["generation"] == first + 2, "never into an older generation's directory"
    rejected = [e for e in cluster.events(kind="checkpoint-rejected") if e["run"] == cluster.run()["run_id"]]
    assert any(str(torn) in e["message"] and str(good) in e["message"] for e in rejected), "one event, both"
    resumed = [e for e in cluster.events(kind="resumed") if e["run"] == cluster.run()["run_id"]]
    assert resumed[0]["data"]["global_step"] == 100


@pytest.mark.fault(42)
def test_row_42_nothing_readable_is_never_step_0_in_silence(cluster: Cluster) -> None:
    torn = cluster.directory / "ckpt" / "gen-000001"
    torn.mkdir(parents=True)
    (torn / "model.weights.h5").write_bytes(b"\x89HDF\r\n\x1a\n torn")
    done = cluster.orch("up", cluster.spec("--steps", "30"), "--wait", timeout=60)
    assert done.returncode == 1
    assert "--from-scratch" in done.stderr
    assert (
        cluster.orch("up", cluster.spec("--steps", "30"), "--wait", "--from-scratch", timeout=60).returncode
        == 0
    )


@pytest.mark.fault(43)
def test_row_43_a_script_that_restores_nothing_is_stopped(cluster: Cluster) -> None:
    cluster.ok("up", cluster.spec("--steps", "100"), "--wait")
    done = cluster.orch("up", cluster.spec("--steps", "200", "--restore-nothing"), "--wait", timeout=60)
    run = cluster.run()
    assert (done.returncode, run["phase"], run["problem"]["code"]) == (1, "FAILED", "resume-mismatch")
    assert "100" in run["reason"]
