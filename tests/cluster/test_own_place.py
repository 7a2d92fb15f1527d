"""A tutorial's script that saves in a place of its own: where it goes on is said, and refused from scratch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cluster.cluster import Cluster

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(500)]


def test_where_it_goes_on_is_said_and_counted_and_refused_from_scratch(
    local_cluster: Cluster, tmp_path: Path
) -> None:
    here, backup = local_cluster, tmp_path / "backup"

    def spec(epochs: int) -> str:
        kind: dict[str, Any] = {"script": "saves_elsewhere.py", "strategy": "single"}
        return here.spec(
            str(backup), str(epochs), tasks=1, types={}, env={"TF_CPP_MIN_LOG_LEVEL": "3"}, **kind
        )

    done = here.orch("up", spec(4), "--wait", timeout=240)
    assert done.returncode == 0, done.stderr + here.orch("logs", "t").stdout[-3000:]
    (told,) = here.events(kind="own-place")
    assert 20 <= told["data"]["global_step"] <= 25
    assert told["data"]["steps_lost"] <= 5
    (again,) = here.events(kind="trains-again")
    assert again["data"]["downtime"]["steps_lost"] == told["data"]["steps_lost"]
    assert any("from a place of its own" in warning for warning in here.run()["warnings"])

    done = here.orch("up", spec(100_000), "--wait", "--from-scratch", timeout=240)
    run = here.run()
    assert (done.returncode, run["phase"], run["problem"]["code"]) == (1, "FAILED", "own-place")
    assert "was to start from scratch and went on at step " in done.stderr
    assert "remove what it restored from" in done.stderr
