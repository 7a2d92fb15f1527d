"""Checkpoints that are torn, not restored, or cannot be written."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.cluster import Cluster
from tests.contract.hanging_disk import hanging
from tests.contract.small_disk import SmallDisk, mounted
from tests.faults.times import FaultTimes

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
    done = cluster.orch("up", cluster.spec("--steps", "200"), "--continue", "--wait", timeout=60)
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


def is_back(restarts: int, step: int, run: dict[str, Any]) -> bool:
    """Return whether it trains after so many restarts, and has saved beyond that step."""
    saved: bool = run["checkpoint"]["global_step"] > step
    return saved and run["restarts"] == restarts and run["phase"] == "RUNNING"


@pytest.mark.fault(82)
def test_row_82_what_was_trained_before_a_start_from_scratch_is_kept_and_said(local_cluster: Cluster) -> None:
    cluster = local_cluster
    spec = cluster.spec("--steps", "100000", checkpoint={"keep": 1}, restart={"backoff": "0.1s"})
    cluster.ok("up", spec)
    cluster.wait(lambda run: run["checkpoint"] is not None)
    cluster.ok("kill", "t")
    cluster.ok("up", spec, "--from-scratch")
    cluster.wait(lambda run: run["checkpoint"] is not None)
    (said,) = cluster.events(kind="from-start")[-1:]
    assert "from scratch; " in said["message"]
    assert " of before are kept in gen-1 (" in said["message"]
    for restart in (1, 2, 3):
        step = cluster.run()["checkpoint"]["global_step"]
        os.kill(cluster.run()["tasks"][1]["pid"], signal.SIGKILL)
        cluster.wait(partial(is_back, restart, step))
    assert {"gen-000001", "gen-000002"} <= set(os.listdir(cluster.directory / "ckpt"))
    assert cluster.events(kind="checkpoints-removed")
    listed = json.loads(cluster.ok("ckpt", "ls", "--json"))["checkpoints"]
    assert {one["generation"] for one in listed if one["set_aside"]} == {1}
    refused = cluster.orch("ckpt", "rm", f"gen-{cluster.run()['generation']}", "--yes")
    assert refused.returncode != 0
    assert "is what the next start goes on from" in refused.stderr
    assert "removed gen-1; " in cluster.ok("ckpt", "rm", "set-aside", "--yes")
    assert not (cluster.directory / "ckpt" / "gen-000001").exists()
    cluster.ok("kill", "t")


@pytest.mark.fault(43)
def test_row_43_a_script_that_restores_nothing_is_stopped(cluster: Cluster) -> None:
    cluster.ok("up", cluster.spec("--steps", "100"), "--wait")
    done = cluster.orch(
        "up", cluster.spec("--steps", "200", "--restore-nothing"), "--continue", "--wait", timeout=60
    )
    run = cluster.run()
    assert (done.returncode, run["phase"], run["problem"]["code"]) == (1, "FAILED", "resume-mismatch")
    assert "100" in run["reason"]


@pytest.mark.timeout(600)
@pytest.mark.fault(44)
def test_row_44_the_chief_saves_into_a_directory_that_hangs(
    local_cluster: Cluster, fault_times: FaultTimes, long: bool
) -> None:
    cluster, stall_s = local_cluster, 20
    timing = {
        "heartbeat": "0.5s",
        "unreachable_after": "2s",
        "lost_after": "8s",
        "stall_after": f"{stall_s}s",
    }
    cluster.ok("up", cluster.spec("--patient", "--steps", "20000", timing=timing))
    before = cluster.wait(lambda run: run["checkpoint"] is not None)
    fault_times.inject(before["generation"])
    with hanging(cluster.directory / "ckpt"):
        said = cluster.wait(lambda run: "has not answered for" in run["reason"])
        fault_times.noticed()
        assert "the checkpoint directory on here" in said["reason"]
        for _ in range(300 if long else 12):
            time.sleep(1)  # that nothing happens takes its time: it has hung for 15 s, and a stall is 20
            during = cluster.wait(lambda _: True)
            ages = [task["heartbeat_age_s"] for task in during["tasks"]]
            assert all(age is not None and age < 3 for age in ages), (during, cluster.ok("events", "t"))
        assert during["global_step"] == said["global_step"], (
            "the chief waits within its save, or this shows nothing"
        )
    after = cluster.wait_step(during["global_step"] + 50)
    fault_times.goes_on()
    assert (after["restarts"], after["phase"]) == (0, "RUNNING"), cluster.ok("events", "t")
    assert [t["pid"] for t in after["tasks"]] == [t["pid"] for t in before["tasks"]]
    assert cluster.events(kind="stalled") == []
    cluster.wait(lambda run: run["checkpoint"]["global_step"] > during["global_step"])


ROOM_BYTES = 80 << 20
"""Less than 16 MiB is a full disk, and a full one has room again from 64 MiB on."""


@pytest.fixture
def small(local_cluster: Cluster) -> Iterator[SmallDisk]:
    """The checkpoint directory is a small file system of its own."""
    with mounted(local_cluster.directory / "ckpt", megabytes=ROOM_BYTES >> 20) as disk:
        yield disk
        local_cluster.orch("kill", "--all", "--force")


@pytest.mark.long
@pytest.mark.fault(36)
def test_row_36_a_script_that_survives_a_full_disk_trains_on(
    local_cluster: Cluster, small: SmallDisk, fault_times: FaultTimes
) -> None:
    cluster = local_cluster
    cluster.ok("up", cluster.spec("--patient", "--steps", "100000"))
    before = cluster.wait(lambda run: run["checkpoint"] is not None)
    fault_times.inject(before["generation"])
    small.fill()
    full = cluster.wait(lambda run: "is full" in run["reason"])
    fault_times.noticed_by(cluster.events(kind="checkpoint-disk-full"))
    kept = Path(full["checkpoint"]["path"]).read_bytes()
    during = cluster.wait_step(full["global_step"] + 100)
    assert Path(full["checkpoint"]["path"]).read_bytes() == kept, "what was verified stays"
    small.empty()
    after = cluster.wait(lambda run: run["checkpoint"]["global_step"] > during["global_step"])
    assert (after["restarts"], after["phase"]) == (0, "RUNNING")
    assert [t["pid"] for t in after["tasks"]] == [t["pid"] for t in before["tasks"]]


@pytest.mark.fault(36)
def test_row_36_a_script_that_dies_of_a_full_disk_is_waited_for(
    local_cluster: Cluster, small: SmallDisk, fault_times: FaultTimes
) -> None:
    cluster = local_cluster
    # One failure of the script's own would end the run.
    restart = {"backoff": "0.2s", "without_progress_max": 1}
    cluster.ok("up", cluster.spec("--steps", "2000", "--pace", "0.01", restart=restart))
    before = cluster.wait(lambda run: run["checkpoint"] is not None)
    fault_times.inject(before["generation"])
    small.fill()
    waits = cluster.wait(
        lambda run: run["phase"] == "FAILED" or ("free" in run["reason"] and "need" in run["reason"])
    )
    fault_times.noticed()
    assert waits["phase"] != "FAILED", waits["reason"]
    assert "16 MiB needed" in waits["reason"], "its checkpoints are small: the least that is no full disk"
    kept = Path(waits["checkpoint"]["path"]).read_bytes()
    time.sleep(5)  # that nothing happens takes its time: many times the backoff
    still = cluster.run()
    assert (still["phase"], still["generation"]) == (waits["phase"], waits["generation"]), (
        "nobody starts into it"
    )
    assert Path(waits["checkpoint"]["path"]).read_bytes() == kept, "what was verified stays"
    small.empty()
    fault_times.wait_again(cluster)
    (resumed,) = cluster.events(kind="resumed")
    assert resumed["data"]["global_step"] >= before["checkpoint"]["global_step"]
    run = cluster.wait_phase("SUCCEEDED", "FAILED")
    assert run["phase"] == "SUCCEEDED", cluster.ok("events", "t")
