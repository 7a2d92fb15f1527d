"""A run that goes on with fewer workers says what that means, and tells its script, over real SSH hosts."""

from __future__ import annotations

import pytest

from tests.cluster.cluster import Cluster, wait_until

pytestmark = pytest.mark.lab


def test_a_script_of_its_own_is_told_how_many_replicas_are_left(cluster: Cluster) -> None:
    spec = cluster.spec(
        script="tells_replicas.py",
        strategy="processes",
        checkpoint=False,
        types={"worker": {"replicas": 2, "replicas_min": 1}},
        on_shrink="hold_batch",
    )
    cluster.ok("up", spec)
    cluster.wait_step(10)
    host = cluster.task("worker:1")["host"]
    cluster.ok("drain", host, "--now")
    run = cluster.wait(lambda run: run["generation"] == 2 and (run["global_step"] or 0) >= 5)
    assert len(run["tasks"]) == 1
    means = "1 of 2 workers: the script is told that the global batch is held"
    assert means in run["reason"]
    (event,) = cluster.events(kind="fewer")
    assert means in event["message"]

    def told() -> bool:
        lines = cluster.ok("logs", "t", "worker:0")
        return "2 of 2 replicas: hold_batch" in lines and "1 of 2 replicas: hold_batch" in lines

    wait_until(told, "what the script was told in both generations")
