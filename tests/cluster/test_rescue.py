"""A run that is to end saved hands over its next step, and waits for no checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster

SCRIPTS = Path(__file__).parents[1] / "contract" / "scripts" / "transparent"

pytestmark = [pytest.mark.tensorflow, pytest.mark.long, pytest.mark.timeout(300)]


def test_no_step_is_lost_although_no_checkpoint_comes(local_cluster: Cluster, tmp_path: Path) -> None:
    cluster = local_cluster
    spec = cluster.spec(
        str(tmp_path),
        "100",
        "0",
        script="killed.py",
        workdir=str(SCRIPTS),
        transparent=True,
        checkpoint={"every": "1h"},
    )
    cluster.ok("up", spec, timeout=120)
    cluster.wait_step(60, timeout=120)
    cluster.ok("kill", "t", "--at-checkpoint", "--yes", timeout=60)
    run = cluster.wait_phase("KILLED")
    lines = [line.split()[1] for path in tmp_path.glob("steps.*") for line in path.read_text().splitlines()]
    done = max(int(step) for step in lines if step.isdigit())
    assert run["checkpoint"]["global_step"] in (done, done + 1), run["reason"]
    assert run["checkpoint"]["verified"]
