"""`orch scale` over real SSH: each size is a run of its own, which ends by itself and leaves nothing."""

from __future__ import annotations

import json

from tests.cluster.cluster import Cluster


def test_two_sizes_are_measured_and_compared(cluster: Cluster) -> None:
    spec = cluster.spec(script="reports_steps.py", strategy="processes")
    document = json.loads(
        cluster.ok("scale", spec, "--replicas", "1,2", "--steps", "60", "--warmup", "10", "--json")
    )
    one, two = document["sizes"]
    assert [one["replicas"], two["replicas"]] == [1, 2]
    assert one["step_s"] > 0.011
    assert two["step_s"] > 0.006
    assert one["step_s_low"] <= one["step_s"] <= one["step_s_high"]
    assert 0 < two["loss"] == one["loss"] < 0.1, "after equal steps"
    assert document["verdict"]
    assert cluster.marked() == []
    runs = json.loads(cluster.ok("status", "--json"))["runs"]
    assert {run["name"]: run["phase"] for run in runs} == {"t-scale-1": "SUCCEEDED", "t-scale-2": "SUCCEEDED"}


def test_a_size_without_room_and_a_script_that_ends_early_are_said(cluster: Cluster) -> None:
    spec = cluster.spec("--steps", "3", "--talk", strategy="processes")
    without_room = cluster.orch("scale", spec, "--replicas", "1,3")
    assert without_room.returncode == 2
    assert "3 replicas: run.tasks.worker" in without_room.stderr
    early = cluster.orch("scale", spec, "--replicas", "1", "--steps", "1000")
    assert early.returncode == 1
    assert "the script ended before its steps were measured" in early.stderr
    unread = cluster.orch("scale", spec, "--replicas", "two")
    assert unread.returncode == 2
    assert "sizes are numbers with commas between" in unread.stderr
