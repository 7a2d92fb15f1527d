"""Horovod itself, by the example that people read first and its cluster spec."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest
import yaml

from tests.cluster.cluster import Cluster

pytestmark = [pytest.mark.horovod, pytest.mark.timeout(300)]

EPOCHS = 40
SPEC = Path(__file__).parents[2] / "cluster_specs/horovod.yaml"


@pytest.mark.parametrize("victim", [1, 0])
def test_a_killed_rank_takes_all_back_to_rank_0s_checkpoint_and_to_the_end(
    local_cluster: Cluster, victim: int
) -> None:
    """Rank 0 has the rendezvous in its process."""
    cluster = local_cluster
    cluster.ok("up", spec(cluster, "--epochs", str(EPOCHS), "--samples", "3200"), timeout=120)
    before = cluster.wait_step(300, timeout=120)
    os.kill(before["tasks"][victim]["pid"], signal.SIGKILL)
    run = cluster.wait_phase("SUCCEEDED", "FAILED", timeout=200)
    log = cluster.ok("logs", "t")
    assert (run["phase"], run["restarts"]) == ("SUCCEEDED", 1), log
    (resumed,) = cluster.events(kind="resumed")
    given, steps = resumed["data"]["global_step"], 3200 // 2 // 32
    assert given >= 2 * steps
    assert given % steps == 0, "saved at the end of an epoch"
    for rank in (0, 1):
        started = re.findall(rf"rank {rank} of 2 starts at epoch (\d+)", log)
        assert started == ["0", str(given // steps)]
        assert f"rank {rank} is done after {EPOCHS * steps} steps, loss 0." in log
    losses = re.findall(r"is done after .* (loss [\d.]+)", log)
    assert len(set(losses)) == 1, "averaged over the ranks"


@pytest.mark.parametrize(
    ("script", "args", "same"),
    [
        ("horovod_tape.py", ("--steps", "3000"), r"is done at step 3000, loss .*(rate 0\.1, weights [\d.]+)"),
        ("session_hook.py", ("--steps", "3000"), r"is done at step 3000, (weights [\d.]+)"),
    ],
)
def test_loops_of_ones_own_are_equal_on_all_ranks_and_come_back(
    local_cluster: Cluster, script: str, args: tuple[str, ...], same: str
) -> None:
    """A DistributedGradientTape with a warm-up, and the hook of TensorFlow 1, which makes other beginnings equal."""
    cluster = local_cluster
    own = Path(__file__).parent / "workdir"
    changes = {"script": script} | ({"workdir": str(own)} if (own / script).exists() else {})
    cluster.ok("up", spec(cluster, *args, **changes), timeout=120)
    before = cluster.wait_step(300, timeout=120)
    os.kill(before["tasks"][1]["pid"], signal.SIGKILL)
    run = cluster.wait_phase("SUCCEEDED", "FAILED", timeout=200)
    log = cluster.ok("logs", "t")
    assert (run["phase"], run["restarts"], run["global_step"]) == ("SUCCEEDED", 1, 3000), log
    given = cluster.events(kind="resumed")[0]["data"]["global_step"]
    assert given >= 250
    assert f"rank 0 of 2 starts at step {given}" in log
    ended = re.findall(same, log)
    assert len(ended) == 2
    assert len(set(ended)) == 1


def spec(cluster: Cluster, *args: str, **run: str) -> str:
    document = yaml.safe_load(SPEC.read_text())
    document["name"] = "t"
    document["run"] |= {
        "workdir": str((SPEC.parent / document["run"]["workdir"]).resolve()),
        "args": list(args),
        "python": os.environ["ORCH_HOROVOD_PYTHON"],
        "checkpoint": {"dir": str(cluster.directory / "ckpt")},
        "timing": {"heartbeat": "0.5s"},
        **run,
    }
    path = cluster.directory / "horovod.yaml"
    path.write_text(yaml.safe_dump(document))
    return str(path)
