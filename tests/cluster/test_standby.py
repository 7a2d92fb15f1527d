"""A standby: it takes the place of what dies, is never in the way, is released once, and is never left over."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.cluster import Cluster, wait_until
from tests.cluster.conftest import MakeLab
from tests.cluster.processes import is_alive
from tests.faults.times import FaultTimes

pytestmark = pytest.mark.lab

EXAMPLES = Path(__file__).parents[2] / "examples"


def is_ready(run: dict[str, Any]) -> bool:
    return bool(run["standby"]["state"] == "ready")


def pids(tasks: list[dict[str, Any]]) -> dict[str, int]:
    return {task["task"]: task["pid"] for task in tasks}


def without_cgroups(directory: Path) -> str:
    """Return a Python whose processes see no control groups: with it agent, shims and tasks find the rest by marker."""
    if os.geteuid() != 0:  # then they cannot be used
        return sys.executable
    python = directory / "python-without-cgroups"
    hidden = "mount -t tmpfs none /sys/fs/cgroup && exec " + sys.executable
    python.write_text(f'#!/bin/sh\nexec unshare -m sh -c \'{hidden} "$@"\' sh "$@"\n')
    python.chmod(0o755)
    return str(python)


@pytest.mark.fault(69)
def test_row_69_the_standby_takes_the_place_of_what_dies(cluster: Cluster) -> None:
    """The trainer is a module of a package, and imports from it."""
    cluster.ok("up", cluster.spec(module="packaged.train", restart={"standby": "on"}))
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
@pytest.mark.fault(83)
def test_row_69_a_standby_that_dies_is_replaced_and_one_that_is_left_over_is_ended(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.ok("up", cluster.spec(restart={"standby": "on"}, python=without_cgroups(tmp_path)))
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
@pytest.mark.fault(83)
def test_row_69_a_run_that_succeeds_leaves_no_standby(cluster: Cluster, tmp_path: Path) -> None:
    python = without_cgroups(tmp_path)
    cluster.ok("up", cluster.spec("--steps", "300", "--lockstep", restart={"standby": "on"}, python=python))
    waiting = pids(cluster.wait(is_ready)["standby"]["tasks"])
    run = cluster.wait_phase("SUCCEEDED")
    assert run["standby"]["generation"] is None
    assert {task["exit_code"] for task in run["tasks"]} == {0}, "none of them was ended by us"
    assert all("checked by marker" in event["message"] for event in cluster.events(kind="swept"))
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
    assert main[16] == str(os.nice(0)), "the thread that will train has its priority"
    fault_times.inject(before["generation"])
    os.kill(pids(before["tasks"])["worker:1"], signal.SIGKILL)
    fault_times.wait_again(cluster, timeout=90)
    after = cluster.wait(lambda run: run["phase"] == "RUNNING" and run["generation"] > before["generation"])
    assert pids(after["tasks"]) == waiting
    assert Path(f"/proc/{waiting['worker:0']}/oom_score_adj").read_text().strip() != "900"
    cluster.ok("kill", "t", timeout=60)
    assert cluster.marked() == []


@pytest.mark.fault(69)
@pytest.mark.long
def test_row_69_a_spare_holds_what_it_may_have_to_take_over(tmp_path: Path, make_lab: MakeLab) -> None:
    made = Cluster(tmp_path, make_lab(3))
    try:
        hosts = made.hosts(3)
        hosts[2]["spare"] = True
        made.ok("up", made.spec(tasks=2, hosts=hosts, restart={"standby": "on"}))
        spare = hosts[2]["name"]
        before = made.wait(is_ready)
        held = {task["task"]: task["pid"] for task in before["standby"]["tasks"] if task["host"] == spare}
        assert sorted(held) == ["worker:0", "worker:1"]
        assert "2 tasks, and 2 on spares" in made.ok("status", "t")
        made.ok("drain", hosts[1]["name"], "--now")
        after = made.wait(lambda run: run["generation"] == 2 and run["phase"] == "RUNNING")
        assert pids(after["tasks"])["worker:1"] == held["worker:1"]
        assert {task["task"]: task["host"] for task in after["tasks"]}["worker:1"] == spare
        wait_until(
            lambda: not is_alive(held["worker:0"]), "the end of what the spare held in place of another"
        )
        made.ok("kill", "t")
        assert made.marked() == []
    finally:
        made.close()


@pytest.mark.tensorflow
@pytest.mark.timeout(300)
@pytest.mark.fault(69)
@pytest.mark.long
def test_row_69_a_worker_of_parameter_servers_is_replaced_by_the_one_that_waits(
    local_cluster: Cluster,
) -> None:
    cluster = local_cluster
    spec = cluster.spec(
        *("--steps", "1000000", "--save-every", "100"),
        types={"chief": 1, "ps": 1, "worker": 1},
        tasks=3,
        strategy="parameter_server",
        script="parameter_server.py",
        workdir=str(EXAMPLES),
        env={"TF_CPP_MIN_LOG_LEVEL": "2"},
        restart={"standby": "on"},
    )
    cluster.ok("up", spec, timeout=120)
    before = cluster.wait(is_ready, timeout=150)
    waiting = pids(before["standby"]["tasks"])["worker:0"]
    os.kill(pids(before["tasks"])["worker:0"], signal.SIGKILL)
    after = cluster.wait(lambda run: pids(run["tasks"])["worker:0"] == waiting, timeout=60)
    assert (after["generation"], after["restarts"]) == (1, 0), "the others train on"
    step = after["global_step"]
    cluster.wait(lambda run: run["global_step"] > step + 100, timeout=60)
    old, new = (port_of(cluster, generation) for generation in (1, 2))
    assert new == old, "its peers know it by that port"
    cluster.ok("kill", "t", timeout=60)
    assert cluster.marked() == []


def port_of(cluster: Cluster, generation: int) -> int:
    """Return the port of worker:0, as its shim has written it down."""
    pattern = f"runs/*/**/worker*0/gen-{generation:06d}/shim.json"
    (path,) = (cluster.directory / "host").glob(pattern)
    return int(json.loads(path.read_text())["port"])
