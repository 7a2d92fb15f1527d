"""A script that asks TensorFlow for determinism: what only shows is not in its graph, so it trains as alone."""

from __future__ import annotations

import subprocess

import pytest

from tests.cluster.cluster import WORKDIR, Cluster
from tests.lean import python_for

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(240)]


@pytest.mark.fault(84)
def test_row_84_a_script_with_op_determinism_trains_as_alone(local_cluster: Cluster) -> None:
    cluster = local_cluster
    spec = cluster.spec(script="deterministic.py", transparent=True, checkpoint=False)
    done = cluster.orch("up", spec, "--wait", timeout=200)
    assert done.returncode == 0, done.stderr
    assert cluster.run()["global_step"] == 24
    logs = cluster.ok("logs", "t", "--task", "worker:0")
    alone = subprocess.run(
        [python_for(WORKDIR / "deterministic.py"), str(WORKDIR / "deterministic.py")],
        capture_output=True,
        text=True,
        check=True,
    )
    (result,) = [line for line in alone.stdout.splitlines() if line.startswith("RESULT")]
    assert result in logs
