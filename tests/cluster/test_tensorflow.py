"""Real TensorFlow over SSH, through a kill -9: three ways of saving, each in a script that knows nothing of orch."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.cluster import Cluster
from tests.faults.times import FaultTimes
from tests.lean import python_for

pytestmark = [pytest.mark.lab, pytest.mark.tensorflow, pytest.mark.timeout(300)]

EXAMPLES = Path(__file__).parents[2] / "examples"
SPECS = Path(__file__).parents[2] / "cluster_specs"

WORKERS = {"worker": 2}
ALL_TYPES = {"chief": 1, "worker": 1, "evaluator": 1}

SCRIPTS: list[tuple[str, list[str], dict[str, str], dict[str, int], int]] = [
    ("digits.py", ["--epochs", "10", "--save-every", "10"], {}, WORKERS, 10 * 23),
    (
        "tf_keras_backup.py",
        ["--epochs", "10", "--save-every", "10"],
        {"TF_USE_LEGACY_KERAS": "1"},
        WORKERS,
        10 * 29,
    ),
    ("checkpoint_manager.py", ["--steps", "500", "--save-every", "10"], {}, ALL_TYPES, 500),
    ("checkpoint_manager.py", ["--steps", "300", "--save-every", "10"], {}, WORKERS, 300),
]
"""Each runs for two seconds or more after step 40, also at 8 ms a step: the kill must come before the end."""


@pytest.mark.parametrize(
    ("script", "args", "env", "types", "steps"),
    # Without SSH the others are killed, or stopped, and resumed by tests/contract too.
    [
        pytest.param(
            *row, id=f"{row[0]}-{sum(row[3].values())}", marks=[pytest.mark.long] * (row != SCRIPTS[-1])
        )
        for row in SCRIPTS
    ],
)
@pytest.mark.fault(15)
def test_a_killed_worker_costs_steps_and_not_the_run(
    cluster: Cluster,
    fault_times: FaultTimes,
    script: str,
    args: list[str],
    env: dict[str, str],
    types: dict[str, int],
    steps: int,
) -> None:
    env = {"TF_CPP_MIN_LOG_LEVEL": "2", **env}
    hosts = sum(types.values())
    spec = cluster.spec(*args, tasks=hosts, types=types, script=script, workdir=str(EXAMPLES), env=env)
    cluster.ok("up", spec, timeout=120)
    before = cluster.wait_step(40, timeout=90)
    fault_times.inject(before["generation"])
    os.kill(before["tasks"][1]["pid"], signal.SIGKILL)
    fault_times.wait_again(cluster, timeout=90)
    fault_times.noticed_by(cluster.events(kind="task-exited"))
    run = cluster.wait_phase("SUCCEEDED", "FAILED", timeout=150)
    assert run["phase"] == "SUCCEEDED", cluster.ok("logs", "t", "--tail", "60")
    assert run["restarts"] == 1, cluster.ok("events", "t")
    (resumed,) = cluster.events(kind="resumed")
    given, lost = resumed["data"]["global_step"], resumed["data"]["steps_lost"]
    assert given >= 10, "from a checkpoint"
    assert 0 <= lost <= 30
    ended = re.findall(r"(?:after|done at step) (\d+)", cluster.ok("logs", "t"))
    assert ended, cluster.ok("logs", "t", "--tail", "20")
    if "evaluator" in types:
        assert f"evaluated at step {steps}, accuracy" in cluster.ok("logs", "t")
    replayed = int(ended[-1]) - steps
    # Keras 3 replays the epoch that it was killed in from its first step, with the weights of its last save.
    assert 0 <= replayed <= (22 if script == "digits.py" else 0), "no step is missing"


def shown(cluster: Cluster, name: str, *args: str, **run: Any) -> str:
    """Write one of the specs for users, with these arguments and shorter waits, and return its path."""
    document = yaml.safe_load((SPECS / name).read_text())
    timing = {"heartbeat": "0.5s", "unreachable_after": "5s", "lost_after": "10s", "stall_after": "7s"}
    document["run"].update(
        args=list(args),
        workdir=str(EXAMPLES),
        python=python_for(EXAMPLES / document["run"]["script"]),
        checkpoint={"dir": str(cluster.directory / "ckpt")},
        timing=timing,
        restart={"backoff": "0.5s", "standby": "off"},
        **run,
    )
    path = cluster.directory / name
    path.write_text(yaml.safe_dump({**document, "name": "t"}))
    return str(path)


def pids(run: dict[str, Any]) -> dict[str, int]:
    return {task["task"]: task["pid"] for task in run["tasks"]}


def is_back(run: dict[str, Any], name: str) -> bool:
    """Whether it was restarted individually, and works again."""
    (task,) = [task for task in run["tasks"] if task["task"] == name]
    return bool(task["restarts"] == 1 and task["phase"] == "RUNNING")


@pytest.mark.long  # before a ps is lost, below, a worker is killed too
@pytest.mark.fault(16)
def test_parameter_servers_mend_a_worker_that_dies(local_cluster: Cluster, fault_times: FaultTimes) -> None:
    cluster = local_cluster
    spec = shown(cluster, "parameter_server.yaml", "--steps", "100000", "--save-every", "100")
    cluster.ok("up", spec, timeout=120)
    before = cluster.wait_step(40, timeout=90)
    fault_times.inject(before["generation"])
    os.kill(pids(before)["worker:1"], signal.SIGKILL)
    during = cluster.wait(lambda run: run["tasks"][2]["restarts"] == 1, timeout=60)
    after = cluster.wait(lambda run: is_back(run, "worker:1"), timeout=90)
    fault_times.goes_on()
    fault_times.noticed_by(cluster.events(kind="task-exited"))
    assert after["global_step"] > during["global_step"], "the chief's steps go on meanwhile"
    assert after["restarts"] == 0
    old, new = pids(before), pids(after)
    assert [name for name in old if new[name] != old[name]] == ["worker:1"]
    assert cluster.orch("kill", "t").returncode == 0


@pytest.mark.long  # seven starts of TensorFlow; a task that is stopped is found in tests of other strategies
@pytest.mark.fault(16, 18)
def test_parameter_servers_mend_a_frozen_worker_and_another_that_dies_meanwhile(
    local_cluster: Cluster, fault_times: FaultTimes
) -> None:
    cluster = local_cluster
    spec = shown(cluster, "parameter_server.yaml", "--steps", "600", "--save-every", "20")
    cluster.ok("up", spec, timeout=120)
    before = cluster.wait_step(40, timeout=90)
    old = pids(before)
    fault_times.inject(before["generation"])
    os.kill(old["worker:1"], signal.SIGSTOP)  # TensorFlow's chief would wait for it for ever
    cluster.wait(lambda run: run["tasks"][2]["restarts"] == 1, timeout=60)
    os.kill(old["worker:0"], signal.SIGKILL)  # and now there is none: TensorFlow waits until both are back
    after = cluster.wait(lambda run: is_back(run, "worker:0") and is_back(run, "worker:1"), timeout=90)
    fault_times.goes_on()
    fault_times.noticed_by(cluster.events(kind="stopping-alone"))
    assert {task["task"]: task["address"] for task in after["tasks"]} == {
        task["task"]: task["address"] for task in before["tasks"]
    }, "its peers know a worker by its address"
    run = cluster.wait_phase("SUCCEEDED", "FAILED", timeout=120)
    assert (run["phase"], run["restarts"]) == ("SUCCEEDED", 0), cluster.ok("logs", "t", "--tail", "60")
    others = ("chief:0", "ps:0", "evaluator:0")
    assert [pids(run)[name] for name in others] == [old[name] for name in others]
    (frozen,) = cluster.events(kind="stopping-alone")
    assert "worker:1 on here is frozen: no sign of life" in frozen["message"]
    assert "evaluated at step 600, accuracy 0.9" in cluster.ok("logs", "t")

    exits = cluster.events(kind="task-exited")
    ended = {event["task"]: event["data"]["ended_time"] for event in exits}  # the last of each
    reaped_s = max(ended[name] for name in ("worker:0", "worker:1", "ps:0")) - ended["chief:0"]
    assert reaped_s < 2.0, "servers never end by themselves"


def _killed_at(cluster: Cluster, fault_times: FaultTimes, restarts: int, name: str, step: int) -> int:
    """Kill that task once the run is at that step after so many restarts; the step from which the next one goes on."""
    trains = cluster.wait(
        lambda run: run["restarts"] == restarts and (run["global_step"] or 0) >= step, timeout=90
    )
    fault_times.inject(trains["generation"])
    os.kill(pids(trains)[name], signal.SIGKILL)
    fault_times.wait_again(cluster, timeout=90)
    given = int(cluster.events(kind="resumed")[-1]["data"]["global_step"])
    assert given >= step - 20, "from its last checkpoint"
    return given


# After a lost chief the gang is started again as after a lost ps: three more starts of TensorFlow.
@pytest.mark.fault(17)
@pytest.mark.parametrize(
    "lost", [("ps:0",), pytest.param(("ps:0", "chief:0"), marks=pytest.mark.long)], ids=["ps", "ps and chief"]
)
def test_a_lost_worker_is_mended_and_a_lost_ps_and_a_lost_chief_take_the_run_back_to_its_checkpoint(
    local_cluster: Cluster, fault_times: FaultTimes, lost: tuple[str, ...]
) -> None:
    cluster = local_cluster
    tasks = {name: {"replicas": 1} for name in ("chief", "worker", "ps")}
    args = ("--steps", str(100 + 200 * len(lost)), "--save-every", "20")
    # The script has servers of its own.
    spec = shown(cluster, "parameter_server.yaml", *args, tasks=tasks, serve=False)
    cluster.ok("up", spec, timeout=120)
    before = cluster.wait_step(20, timeout=90)
    os.kill(pids(before)["worker:0"], signal.SIGKILL)
    after = cluster.wait(lambda run: is_back(run, "worker:0"), timeout=90)
    assert (after["restarts"], pids(after)["chief:0"]) == (0, pids(before)["chief:0"])
    reached = 0
    for restarts, name in enumerate(lost):
        reached = _killed_at(cluster, fault_times, restarts, name, reached + 60)
    run = cluster.wait_phase("SUCCEEDED", "FAILED", timeout=120)
    assert (run["phase"], run["restarts"]) == ("SUCCEEDED", len(lost)), cluster.ok(
        "logs", "t", "--tail", "60"
    )
    causes = [event["message"] for event in cluster.events(kind="backoff")]
    for name, cause in zip(lost, causes, strict=True):
        assert f"{name} on here was killed" in cause
    assert not cluster.marked()
