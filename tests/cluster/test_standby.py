"""A standby: it takes the place of what dies, is never in the way, is released once, and is never left over."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.cluster import Cluster, wait_until
from tests.cluster.processes import is_alive
from tests.faults.times import FaultTimes

pytestmark = pytest.mark.lab

EXAMPLES = Path(__file__).parents[2] / "examples"


def is_ready(run: dict[str, Any]) -> bool:
    return bool(run["standby"]["state"] == "ready")


def pids(tasks: list[dict[str, Any]]) -> dict[str, int]:
    return {task["task"]: task["pid"] for task in tasks}


@pytest.mark.fault(69)
def test_row_69_the_standby_takes_the_place_of_what_dies(cluster: Cluster) -> None:
    cluster.ok("up", cluster.spec(restart={"standby": "on"}))
    before = cluster.wait(is_ready)
    waiting = pids(before["standby"]["tasks"])
    assert before["standby"]["generation"] == 2
    assert (before["generation"], sorted(waiting)) == (1, ["worker:0", "worker:1"])
    assert "standby: generation 2 is ready, 2 tasks" in cluster.ok("status", "t")
    os.kill(pids(before["tasks"])["worker:1"], signal.SIGKILL)
    after = cluster.wait(
        lambda run: run["generation"] == 2 and (run["global_step"] or 0) > before["global_step"]
    )
    assert (pids(after["tasks"]), after["restarts"]) == (waiting, 1)
    logs = cluster.ok("logs", "t", "worker:0")
    assert "restart 1" in logs, "the script is told of the restart that it was started before"
    again = cluster.wait(is_ready)
    assert again["standby"]["generation"] == 3
    cluster.ok("kill", "t")
    assert cluster.marked() == []
    assert [event["kind"] for event in cluster.events(kind="adopted")] == []


@pytest.mark.fault(69)
def test_row_69_a_standby_that_dies_is_replaced_and_one_that_is_left_over_is_ended(cluster: Cluster) -> None:
    cluster.ok("up", cluster.spec(restart={"standby": "on"}))
    before = cluster.wait(is_ready)
    lost = pids(before["standby"]["tasks"])
    os.kill(lost["worker:0"], signal.SIGKILL)
    wait_until(lambda: not any(map(is_alive, lost.values())), "the end of the whole standby")
    replaced = cluster.wait(is_ready)
    assert (replaced["generation"], replaced["restarts"]) == (1, 0)
    assert pids(replaced["tasks"]) == pids(before["tasks"]), "training has not noticed"
    (told,) = cluster.events(kind="standby-lost")
    assert "training goes on, and another is started" in told["message"]
    cluster.kill_coordinator()
    cluster.ok("coordinator", "start")
    adopted = cluster.wait(lambda run: run["epoch"] > before["epoch"] and is_ready(run))
    assert pids(adopted["standby"]["tasks"]) == pids(replaced["standby"]["tasks"])
    cluster.ok("kill", "t", "--force")
    assert cluster.marked() == []


@pytest.mark.fault(69)
def test_row_69_a_run_that_succeeds_leaves_no_standby(cluster: Cluster) -> None:
    cluster.ok("up", cluster.spec("--steps", "300", restart={"standby": "on"}))
    waiting = pids(cluster.wait(is_ready)["standby"]["tasks"])
    run = cluster.wait_phase("SUCCEEDED")
    assert run["standby"]["generation"] is None
    assert not any(map(is_alive, waiting.values()))
    assert cluster.marked() == []


@pytest.mark.tensorflow
@pytest.mark.timeout(300)
@pytest.mark.fault(69)
def test_row_69_with_tensorflow_the_standby_has_imported(cluster: Cluster, fault_times: FaultTimes) -> None:
    args = ["--epochs", "40", "--save-every", "10"]
    spec = cluster.spec(
        *args,
        script="digits.py",
        workdir=str(EXAMPLES),
        env={"TF_CPP_MIN_LOG_LEVEL": "2"},
        restart={"standby": "on"},
    )
    cluster.ok("up", spec, timeout=120)
    before = cluster.wait(is_ready, timeout=150)
    waiting = pids(before["standby"]["tasks"])
    assert "libtensorflow" in Path(f"/proc/{waiting['worker:0']}/maps").read_text()
    main = Path(f"/proc/{waiting['worker:0']}/stat").read_text().rpartition(")")[2].split()
    assert main[16] == "0", "the thread that will train has its priority"
    fault_times.inject(before["generation"])
    os.kill(pids(before["tasks"])["worker:1"], signal.SIGKILL)
    fault_times.wait_again(cluster, timeout=90)
    after = cluster.wait(lambda run: run["phase"] == "RUNNING" and run["generation"] > before["generation"])
    assert pids(after["tasks"]) == waiting
    assert Path(f"/proc/{waiting['worker:0']}/oom_score_adj").read_text().strip() != "900"
    cluster.ok("kill", "t", timeout=60)
    assert cluster.marked() == []
