"""An Estimator under `single` and `mirrored`, with Horovod's TensorFlow 2.15: its steps are seen, and it comes back."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest
import yaml

from tests.cluster.cluster import Cluster

pytestmark = [pytest.mark.horovod, pytest.mark.timeout(300)]

SPEC = Path(__file__).parents[2] / "cluster_specs/estimator.yaml"
STEPS = 2000


@pytest.mark.parametrize(("strategy", "replicas"), [("single", 1), ("mirrored", 2)])
def test_an_estimator_is_watched_and_comes_back_from_its_model_dir(
    local_cluster: Cluster, strategy: str, replicas: int
) -> None:
    cluster, document = local_cluster, yaml.safe_load(SPEC.read_text())
    run = document["run"]
    run |= {
        "strategy": strategy,
        "workdir": str((SPEC.parent / run["workdir"]).resolve()),
        "args": ["--steps", str(STEPS), *(["--mirrored"] if strategy == "mirrored" else [])],
        "python": os.environ["ORCH_HOROVOD_PYTHON"],
        "checkpoint": {"dir": str(cluster.directory / "ckpt")},
        "timing": {"heartbeat": "0.5s"},
    }
    if replicas > 1:
        run["replicas_on_cpu"] = replicas
    path = cluster.directory / "estimator.yaml"
    path.write_text(yaml.safe_dump({**document, "name": "t"}))
    cluster.ok("up", str(path), timeout=120)
    before = cluster.wait_step(300, timeout=120)
    os.kill(before["tasks"][0]["pid"], signal.SIGKILL)
    ended = cluster.wait_phase("SUCCEEDED", "FAILED", timeout=200)
    log = cluster.ok("logs", "t")
    assert (ended["phase"], ended["restarts"], ended["global_step"]) == ("SUCCEEDED", 1, STEPS), log[-4000:]
    given = cluster.events(kind="resumed")[0]["data"]["global_step"]
    assert given >= 200
    assert f"{replicas} replica(s), starting from " in log
    assert f"model.ckpt-{given}\n" in log
    assert re.search(rf"done at step {STEPS}, accuracy (0\.9|1\.0)", log)
