"""Real TensorFlow over SSH, through a kill -9: three ways of saving, each in a script that knows nothing of orch."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster

pytestmark = [pytest.mark.lab, pytest.mark.tensorflow, pytest.mark.timeout(300)]

EXAMPLES = Path(__file__).parents[2] / "examples"

SCRIPTS: list[tuple[str, list[str], dict[str, str], int, int]] = [
    ("digits.py", ["--epochs", "6", "--save-every", "10"], {}, 2, 6 * 23),
    ("tf_keras_backup.py", ["--epochs", "6", "--save-every", "10"], {"TF_USE_LEGACY_KERAS": "1"}, 2, 6 * 29),
    ("checkpoint_manager.py", ["--steps", "140", "--save-every", "10"], {}, 2, 140),
]


@pytest.mark.parametrize(
    ("script", "args", "env", "tasks", "steps"), SCRIPTS, ids=[row[0] for row in SCRIPTS]
)
@pytest.mark.fault(15)
def test_a_killed_worker_costs_steps_and_not_the_run(
    cluster: Cluster, script: str, args: list[str], env: dict[str, str], tasks: int, steps: int
) -> None:
    env = {"TF_CPP_MIN_LOG_LEVEL": "2", **env}
    spec = cluster.spec(*args, tasks=tasks, script=script, workdir=str(EXAMPLES), env=env)
    cluster.ok("up", spec, timeout=120)
    before = cluster.wait_step(40, timeout=90)
    os.kill(before["tasks"][1]["pid"], signal.SIGKILL)
    run = cluster.wait_phase("SUCCEEDED", "FAILED", timeout=150)
    assert run["phase"] == "SUCCEEDED", cluster.ok("logs", "t", "--tail", "60")
    assert run["restarts"] == 1, cluster.ok("events", "t")
    (resumed,) = cluster.events(kind="resumed")
    given, lost = resumed["data"]["global_step"], resumed["data"]["steps_lost"]
    assert given >= 10, "from a checkpoint"
    assert 0 <= lost <= 30
    ended = re.findall(r"(?:after|done at step) (\d+)", cluster.ok("logs", "t"))
    assert ended, cluster.ok("logs", "t", "--tail", "20")
    replayed = int(ended[-1]) - steps
    # Keras 3 replays the epoch that it was killed in from its first step, with the weights of its last save.
    assert 0 <= replayed <= (22 if script == "digits.py" else 0), "no step is missing"


@pytest.mark.fault(16)
def test_parameter_servers_go_on_without_a_worker_and_take_it_back(local_cluster: Cluster) -> None:
    cluster = local_cluster
    spec = cluster.spec(
        "--steps",
        "1500",
        tasks=4,
        script="parameter_server.py",
        workdir=str(EXAMPLES),
        strategy="parameter_server",
        env={"TF_CPP_MIN_LOG_LEVEL": "2"},
        types={"chief": 1, "worker": 2, "ps": 1},
    )
    cluster.ok("up", spec, timeout=120)
    before = cluster.wait_step(50, timeout=90)
    pids = {task["task"]: task["pid"] for task in before["tasks"]}
    os.kill(pids["worker:1"], signal.SIGKILL)
    after = cluster.wait(
        lambda run: run["tasks"][2]["restarts"] == 1 and run["tasks"][2]["phase"] == "RUNNING", timeout=90
    )
    assert after["global_step"] > before["global_step"], "the chief's steps went on"
    assert {t["task"]: t["pid"] for t in after["tasks"]} == {**pids, "worker:1": after["tasks"][2]["pid"]}
    assert after["tasks"][2]["address"] == before["tasks"][2]["address"], "its peers know it by its address"
    run = cluster.wait_phase("SUCCEEDED", "FAILED", timeout=120)
    assert (run["phase"], run["restarts"]) == ("SUCCEEDED", 0), cluster.ok("logs", "t", "--tail", "60")
