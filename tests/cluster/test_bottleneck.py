"""What limits a run with real TensorFlow: a worker that something delays, and an input that is slow."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cluster.cluster import Cluster

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(240)]


def limited(cluster: Cluster, kind: str) -> dict[str, Any]:
    """Return what is told of a run that this slows down, once it is told."""
    spec = cluster.spec(kind, script="limited.py", transparent=True, checkpoint=False)
    cluster.ok("up", spec, timeout=120)
    run = cluster.wait(lambda run: bool(run["bottleneck"]), timeout=150)
    return dict(run["bottleneck"])


@pytest.mark.long
def test_a_worker_that_the_others_wait_for_is_named(local_cluster: Cluster) -> None:
    told = limited(local_cluster, "worker:1")
    assert (told["kind"], told["task"], told["host"]) == ("slow-task", "worker:1", "here")
    assert told["share"] > 0.4
    assert "limited by worker:1 on here: the others wait for it" in local_cluster.ok("status", "t")
    assert "limited by worker:1 on here: the others wait for it" in local_cluster.ok("why", "t")
    assert json.loads(local_cluster.ok("why", "t", "--json"))["bottleneck"]["task"] == "worker:1"
    (event,) = local_cluster.events(kind="bottleneck")
    assert event["task"] == "worker:1"


@pytest.mark.long
def test_a_slow_input_is_named_with_what_helps(local_cluster: Cluster) -> None:
    told = limited(local_cluster, "input")
    assert told["kind"] == "input"
    assert told["share"] > 0.4
    assert "prefetch()" in local_cluster.ok("status", "t")
