"""A script that saves and restores nothing: what a fault costs is said before, and no death makes it FAILED."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cluster.cluster import Cluster

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(300)]


def test_it_goes_on_as_by_hand_and_what_a_fault_costs_is_said_before(local_cluster: Cluster) -> None:
    here = local_cluster
    kind: dict[str, Any] = {"script": "saves_only.py", "strategy": "single"}
    spec = here.spec(tasks=1, types={}, env={"TF_CPP_MIN_LOG_LEVEL": "3"}, **kind)
    costs = json.loads(here.ok("plan", spec, "--json"))["fault_costs"]
    assert costs["kind"] == "everything"
    done = here.orch("up", spec, "--wait", timeout=240)
    assert (
        "warning: a fault costs everything since step 0: saves_only.py:21 saves by ModelCheckpoint"
        in done.stderr
    )
    run = here.run()
    assert (done.returncode, run["phase"], run["restarts"]) == (0, "SUCCEEDED", 1), done.stderr
    assert run["global_step"] == 40
    assert run["fault_costs"] == costs
    assert any("trains again what was trained" in warning for warning in run["warnings"])
