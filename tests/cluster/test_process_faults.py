"""What becomes of a run when one of its processes dies, is frozen, or is of another version."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import time
from pathlib import Path

import pytest

import orchestrator
from tests.cluster.cluster import Cluster, lab_of, steps_logged, wait_until
from tests.cluster.processes import agents, freeze, is_alive, parent
from tests.faults.times import FaultTimes
from tests.patience import patient

pytestmark = pytest.mark.lab


PACKAGE = Path(orchestrator.__file__).parent


@pytest.mark.fault(1)
def test_row_01_coordinator_killed_while_training(cluster: Cluster, fault_times: FaultTimes) -> None:
    cluster.ok("up", cluster.spec())
    before = cluster.wait_step(20)
    fault_times.inject()
    cluster.kill_coordinator()
    cluster.ok("coordinator", "start")
    after = cluster.wait_step(before["global_step"] + 40, timeout=15)
    assert [t["pid"] for t in after["tasks"]] == [t["pid"] for t in before["tasks"]]
    assert (after["restarts"], after["generation"]) == (0, before["generation"])
    assert after["epoch"] > before["epoch"]
    adopted = cluster.events(kind="adopted")
    assert {event["task"] for event in adopted} == {"worker:0", "worker:1"}
    fault_times.noticed_by(adopted)
    assert fault_times.measured["noticed_s"] < patient(10.0)


@pytest.mark.fault(2)
def test_row_02_the_run_ends_while_no_coordinator_lives(cluster: Cluster) -> None:
    cluster.ok("up", cluster.spec("--steps", "150", "--talk"))
    cluster.wait_step(20)
    pids = [task["pid"] for task in cluster.run()["tasks"]]
    cluster.kill_coordinator()
    killed = time.time()
    wait_until(lambda: not any(map(is_alive, pids)), "their end")
    time.sleep(0.5)
    again = time.time()
    cluster.ok("coordinator", "start")
    run = cluster.wait_phase("SUCCEEDED", timeout=15)
    assert run["restarts"] == 0
    assert all(killed < task["ended_time"] < again for task in run["tasks"]), "the true time of the end"
    for task in ("worker:0", "worker:1"):
        assert steps_logged(cluster, task) == list(range(1, 151)), (
            "no line is missing, and none is there twice"
        )
        assert f"{task} done at step 150" in cluster.ok("logs", "t", task)


@pytest.mark.fault(3)
def test_row_03_agent_killed(cluster: Cluster, fault_times: FaultTimes) -> None:
    cluster.ok("up", cluster.spec())
    before = cluster.wait_step(20)
    host_dir = lab_of(cluster).hosts[0].host_dir
    before_it = agents(host_dir)
    assert before_it
    fault_times.inject()
    for pid in before_it:
        os.kill(pid, signal.SIGKILL)
    cluster.wait(lambda _: bool(set(agents(host_dir)) - set(before_it)), timeout=15)
    fault_times.noticed()
    after = cluster.wait_step(before["global_step"] + 100, timeout=15)
    assert after["restarts"] == 0
    assert [t["pid"] for t in after["tasks"]] == [t["pid"] for t in before["tasks"]]


@pytest.mark.fault(4)
def test_row_04_shim_killed(cluster: Cluster, fault_times: FaultTimes) -> None:
    cluster.ok("up", cluster.spec())
    before = cluster.wait_step(20)
    task = before["tasks"][1]
    shim = parent(task["pid"])
    fault_times.inject(before["generation"])
    os.kill(shim, signal.SIGKILL)
    after = fault_times.wait_again(cluster)
    fault_times.noticed_by(cluster.events(kind="task-exited"))
    assert not is_alive(task["pid"]), "no orphan"
    assert after["first_cause"]["cause"] == "shim died"
    assert after["restarts"] == 1


@pytest.mark.fault(5)
def test_row_05_a_new_version_of_the_agent_takes_over_the_old_shims(cluster: Cluster) -> None:
    cluster.ok("up", cluster.spec())
    before = cluster.wait_step(20)
    cluster.kill_coordinator()
    upgraded = cluster.directory / "upgraded"
    shutil.copytree(PACKAGE, upgraded / "orchestrator", ignore=shutil.ignore_patterns("__pycache__"))
    with (upgraded / "orchestrator" / "host" / "agent" / "main.py").open("a") as agent:
        agent.write("\n# another version: another bundle, another digest\n")
    cluster.env["PYTHONPATH"] = str(upgraded)
    cluster.ok("coordinator", "start")
    after = cluster.wait_step(before["global_step"] + 40, timeout=20)
    assert [t["pid"] for t in after["tasks"]] == [t["pid"] for t in before["tasks"]]
    assert after["restarts"] == 0
    bundles = Path(lab_of(cluster).hosts[0].host_dir, "bundle")
    assert len({path.name.split(".")[0] for path in bundles.glob("*.pyz")}) >= 2, "the new one was pushed"
    assert cluster.orch("kill", "t").returncode == 0, "and the old shims obey it"


@pytest.mark.fault(10)
def test_row_10_a_frozen_task_is_found_by_its_progress(cluster: Cluster, fault_times: FaultTimes) -> None:
    timing = {"heartbeat": "0.5s", "unreachable_after": "2s", "lost_after": "8s", "stall_after": "3s"}
    cluster.ok("up", cluster.spec(timing=timing))
    before = cluster.wait(lambda run: run["checkpoint"] is not None)
    fault_times.inject(before["generation"])
    os.kill(before["tasks"][0]["pid"], signal.SIGSTOP)
    after = fault_times.wait_again(cluster)
    fault_times.noticed_by(cluster.events(kind="stalled"))
    assert not is_alive(before["tasks"][0]["pid"])
    assert after["restarts"] == 1
    (stacks,) = cluster.events(kind="stacks")
    assert stacks["data"]["stacks"].keys() == {"worker:0", "worker:1"}
    assert "T (stopped)" in stacks["data"]["stacks"]["worker:0"], (
        "evidence of the frozen one comes from the kernel"
    )
    assert "fake_trainer.py" in stacks["data"]["stacks"]["worker:1"]
    assert stacks["task"] == after["first_cause"]["task"] == "worker:0", "the odd one is named"
    assert "worker:0 differs from the other tasks: its runtime does not answer" in stacks["message"]


@pytest.mark.fault(90)
def test_row_90_a_coordinator_that_does_not_answer_is_named_with_the_way_out(local_cluster: Cluster) -> None:
    cluster = local_cluster
    spec = cluster.spec("--steps", "100000")
    cluster.ok("up", spec)
    before = cluster.wait_step(5)
    pid = cluster.coordinator_pid
    freeze(pid)
    try:
        for command in (["status"], ["kill", "t"], ["up", spec], ["events"], ["why", "t"], ["ckpt", "ls"]):
            began = time.monotonic()
            refused = cluster.orch(*command)
            took_s = time.monotonic() - began
            # What was recorded last is shown, and said to be that.
            assert refused.returncode == (0 if command[0] == "why" else 3), (command, refused.stderr)
            assert (
                f"he coordinator (pid {pid}) does not answer: it is stopped, and last wrote its journal"
                in (refused.stderr)
            ), command
            assert f"`kill -CONT {pid}` lets it go on" in refused.stderr
            assert took_s < patient(15), f"five seconds, and a start that may compile all of orch: {command}"
    finally:
        os.kill(pid, signal.SIGCONT)
    after = cluster.wait_step(before["global_step"] + 20)
    assert (after["restarts"], after["phase"]) == (0, "RUNNING")
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (100_000, 100_000))  # `ulimit -f` where it was started
    refused = cluster.orch("kill", "t")
    assert refused.returncode == 1, refused.stderr
    assert "its process may write files of 98 KiB (`ulimit -f`)" in refused.stderr
    assert "`orch coordinator restart` from a shell without that limit" in refused.stderr
    wait_until(
        lambda: f"the coordinator (pid {pid}) has decided nothing" in cluster.orch("status").stderr, "said"
    )
    cluster.ok("coordinator", "restart")
    assert "has decided nothing" not in cluster.orch("status").stderr
