"""Scripts of TensorFlow 1 by tf.compat.v1: their steps are seen, and they come back where they have saved."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(180)]

EXAMPLES = Path(__file__).parents[2] / "examples"
STEPS = 6_000


@pytest.mark.long
def test_a_monitored_session_is_watched_and_resumed(local_cluster: Cluster) -> None:
    cluster = local_cluster
    spec = cluster.spec(
        *("--steps", str(STEPS), "--save-every", "100"),
        tasks=1,
        strategy="single",
        script="monitored_session.py",
        workdir=str(EXAMPLES),
    )
    cluster.ok("up", spec, timeout=60)
    before = cluster.wait_step(300, timeout=60)
    os.kill(before["tasks"][0]["pid"], signal.SIGKILL)
    run = cluster.wait_phase("SUCCEEDED", "FAILED", timeout=120)
    log = cluster.ok("logs", "t")
    assert (run["phase"], run["restarts"], run["global_step"]) == ("SUCCEEDED", 1, STEPS), log[-3000:]
    (resumed,) = cluster.events(kind="resumed")
    assert resumed["data"]["global_step"] >= 200
    assert f"starting at step {resumed['data']['global_step']}\n" in log
    assert f"done at step {STEPS}, loss 0." in log
