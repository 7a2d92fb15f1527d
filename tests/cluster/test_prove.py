"""`orch prove` with real TensorFlow: an ordinary script that trains the same on two workers, and some that part."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cluster.cluster import Cluster

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(300)]

ON_ONE_DEVICE_EACH = {"strategy": "multi_worker_mirrored"}
IN_ONE_PROCESS = {"strategy": "mirrored", "replicas_on_cpu": 2}
"""Two replicas in one process: it starts faster."""


def proven(cluster: Cluster, kind: str, code: int, **run: Any) -> dict[str, Any]:
    tasks = 1 if run["strategy"] == "mirrored" else 2
    spec = cluster.spec(kind, script="proven.py", tasks=tasks, transparent=True, **run)
    done = cluster.orch("prove", spec, "--steps", "6", "--json", timeout=200)
    assert done.returncode == code, done.stderr
    return dict(json.loads(done.stdout))


def test_two_workers_train_what_one_process_trains(local_cluster: Cluster) -> None:
    found = proven(local_cluster, "equal", 0, **ON_ONE_DEVICE_EACH)
    assert found["equal"] is True
    assert (found["steps"], found["replicas"], found["compared"]) == (6, 2, 1.0)
    assert found["loss"]["value"] < 1e-5
    assert found["weights"]["value"] < 1e-5
    assert [row["step"] for row in found["each"]] == [1, 2, 3, 4, 5, 6]
    assert local_cluster.marked() == []
    runs = json.loads(local_cluster.ok("status", "--json"))["runs"]
    assert {run["name"]: run["phase"] for run in runs} == {
        "t-prove-alone": "SUCCEEDED",
        "t-prove-together": "SUCCEEDED",
    }
    assert [(run["global_step"], run["steps_total"]) for run in runs] == [(6, None), (6, None)]


@pytest.mark.parametrize(
    ("kind", "run", "cause", "told"),
    [
        pytest.param(
            "batchnorm",
            IN_ONE_PROCESS,
            "normalization",
            "BatchNormalization(synchronized=True)",
            marks=pytest.mark.long,
        ),
        pytest.param("dropout", IN_ONE_PROCESS, "random", "Dropout 'forget' draws", marks=pytest.mark.long),
        pytest.param("begin", IN_ONE_PROCESS, "begin", "before the first step", marks=pytest.mark.long),
        pytest.param("shuffled", IN_ONE_PROCESS, "examples", "of step 1 are not", marks=pytest.mark.long),
        pytest.param("loss", ON_ONE_DEVICE_EACH, "unknown", "the loss is not", marks=pytest.mark.long),
        pytest.param(
            "equal",
            {**IN_ONE_PROCESS, "batch": "per_replica"},
            "batch",
            "32 examples in one process, 64 here",
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_script_that_parts_is_told_at_which_step_and_why(
    local_cluster: Cluster, kind: str, run: dict[str, Any], cause: str, told: str
) -> None:
    found = proven(local_cluster, kind, 1, **run)
    assert found["equal"] is False
    assert found["parted_at"] == (0 if kind == "begin" else 1)
    assert found["cause"] == cause
    assert told in found["sentence"]


def test_a_script_that_cannot_be_proven_is_refused_before_anything_starts(local_cluster: Cluster) -> None:
    refused = local_cluster.orch("prove", local_cluster.spec())
    assert refused.returncode == 2
    assert "fake_trainer.py cannot be proven: it is written for its strategy" in refused.stderr
