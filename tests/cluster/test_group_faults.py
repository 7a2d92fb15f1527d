"""What the tasks of a group do to each other: failures, exit codes, deaths, ports, and one that never arrives."""

from __future__ import annotations

import json
import os
import re
import signal
import sys

import pytest

from tests.cluster.cluster import Cluster, lab_of
from tests.faults.times import FaultTimes

pytestmark = pytest.mark.lab


@pytest.mark.fault(13)
def test_row_13_a_script_that_fails_alike_on_all_tasks_ends_the_run(cluster: Cluster) -> None:
    spec = cluster.spec("--fail-early", restart={"backoff": "0.5s"})
    done = cluster.orch("up", spec, "--wait", timeout=60)
    run = cluster.run()
    assert (done.returncode, run["phase"], run["restarts"]) == (1, "FAILED", 1)
    assert "ValueError: no data set here" in run["first_cause"]["sentence"]
    assert any("ValueError" in line for line in run["first_cause"]["last_lines"])


@pytest.mark.fault(13)
def test_row_13_backoff_doubles_until_the_budget_is_spent(cluster: Cluster) -> None:
    restart = {"backoff": "0.25s", "without_progress_max": 4}
    args = ("--fail-at", "3", "--fail-later", "--fail-task", "worker:1")
    spec = cluster.spec(*args, checkpoint=False, restart=restart)
    done = cluster.orch("up", spec, "--wait", timeout=90)
    run = cluster.run()
    assert (done.returncode, run["phase"], run["restarts"]) == (1, "FAILED", 3)
    first, *later = [e["message"] for e in cluster.events(kind="backoff")]
    assert first.startswith("restart at once")
    waits = [float(message.split("restart in ")[1].split(" s")[0]) for message in later]
    assert len(waits) == 2
    assert all(
        abs(wait - expected) <= 0.2 * expected + 0.06
        for wait, expected in zip(waits, (0.25, 0.5), strict=True)
    )
    assert run["first_cause"]["task"] == "worker:1"
    assert "4 failures in a row" in run["reason"]


@pytest.mark.fault(13)
def test_row_13_the_same_failure_of_one_task_at_the_same_step_ends_the_run(cluster: Cluster) -> None:
    args = ("--fail-at", "3", "--fail-task", "worker:1")
    done = cluster.orch("up", cluster.spec(*args, checkpoint=False), "--wait", timeout=90)
    run = cluster.run()
    assert (done.returncode, run["phase"], run["restarts"]) == (1, "FAILED", 1)
    assert "the same failure at the same step twice in a row" in run["reason"]


@pytest.mark.fault(14)
def test_row_14_exit_42_is_started_again_at_once(cluster: Cluster) -> None:
    spec = cluster.spec("--fail-at", "20", "--fail-code", "42", "--fail-once", "--steps", "60")
    done = cluster.orch("up", spec, "--wait", timeout=60)
    assert done.returncode == 0, cluster.ok("events", "t")
    run = cluster.run()
    assert run["restarts"] == 1
    (backoff,) = cluster.events(kind="backoff")
    assert "saved" in backoff["message"]
    assert "at once" in backoff["message"]


@pytest.mark.fault(15)
def test_row_15_one_task_dies_and_all_start_again_from_the_checkpoint(
    cluster: Cluster, fault_times: FaultTimes
) -> None:
    cluster.ok("up", cluster.spec(tasks=3))
    before = cluster.wait(lambda run: run["checkpoint"] is not None and run["global_step"] > 30)
    fault_times.inject(before["generation"])
    os.kill(before["tasks"][2]["pid"], signal.SIGKILL)
    after = fault_times.wait_again(cluster)
    fault_times.noticed_by(cluster.events(kind="task-exited"))
    assert after["generation"] == before["generation"] + 1
    assert after["restarts"] == 1
    assert not {t["pid"] for t in after["tasks"]} & {t["pid"] for t in before["tasks"]}
    assert not {t["address"] for t in after["tasks"]} & {t["address"] for t in before["tasks"]}, (
        "ports rotate"
    )
    (resumed,) = cluster.events(kind="resumed")
    assert resumed["data"]["global_step"] >= before["checkpoint"]["global_step"]
    assert resumed["data"]["steps_lost"] <= 40
    assert after["first_cause"]["task"] == "worker:2"
    assert "SIGKILL" in after["first_cause"]["sentence"]
    (why,) = json.loads(cluster.ok("why", "t", "--json"))["first_causes"]
    assert (why["task"], why["cause"], why["stopped"] + why["followers"]) == ("worker:2", "signal", 2)
    assert (why["exit_code"], why["signal"]) == (None, signal.SIGKILL)
    assert f"resumes from step {resumed['data']['global_step']}" in why["done"]
    assert f"first cause: {why['sentence']}" in cluster.ok("logs", "t")
    started = f"starts at step {resumed['data']['global_step']},"
    # The logs follow the reports: the chief's first step is shown before the others' first lines are here.
    cluster.wait(lambda _: cluster.ok("logs", "t").count(started) == 3)


@pytest.mark.fault(19)
def test_row_19_failures_after_the_chiefs_exit_0_are_a_warning(cluster: Cluster) -> None:
    done = cluster.orch("up", cluster.spec("--steps", "30", "--late-failure"), "--wait", timeout=60)
    run = cluster.run()
    assert (done.returncode, run["phase"], run["restarts"]) == (0, "SUCCEEDED", 0)
    assert any("worker:1" in warning for warning in run["warnings"])


@pytest.mark.fault(20)
def test_row_20_a_taken_port_is_passed_over(cluster: Cluster) -> None:
    spec = cluster.spec("--steps", "40", ports="20000-20063")
    planned = json.loads(cluster.ok("plan", spec, "--json"))
    assert planned
    taker = lab_of(cluster).hosts[0].popen(sys.executable, "-c", _OCCUPY)
    try:
        assert taker.stdout is not None
        taker.stdout.readline()
        done = cluster.orch("up", spec, "--wait", timeout=60)
    finally:
        taker.kill()
        taker.communicate()
    run = cluster.run()
    assert (done.returncode, run["phase"], run["restarts"]) == (0, "SUCCEEDED", 0)
    assert int(run["tasks"][0]["address"].rpartition(":")[2]) % 2 == 1


@pytest.mark.fault(20)
def test_row_20_a_port_lost_at_the_bind_is_one_restart_and_not_the_scripts_fault(cluster: Cluster) -> None:
    # A failure of the script's own would end the run: it may have one.
    restart = {"backoff": "0.5s", "without_progress_max": 1}
    spec = cluster.spec("--steps", "60", "--lose-port", "--fail-task", "worker:1", restart=restart)
    done = cluster.orch("up", spec, "--wait", timeout=60)
    assert done.returncode == 0, cluster.ok("events", "t")
    run = cluster.run()
    assert (run["phase"], run["restarts"], run["generation"]) == ("SUCCEEDED", 1, 2)
    (why,) = json.loads(cluster.ok("why", "t", "--json"))["first_causes"]
    assert (why["task"], why["cause"]) == ("worker:1", "port")
    (lost,) = re.findall(r"port (\d+) is lost", cluster.ok("logs", "t", "worker:1"))
    assert not run["tasks"][1]["address"].endswith(f":{lost}")
    assert cluster.marked() == [], "nor is who took it left, which was the task's own child"


@pytest.mark.fault(21)
def test_row_21_a_task_that_never_arrives_is_named(cluster: Cluster) -> None:
    sleepy = cluster.directory / "sleepy-python"  # hangs where it should begin the script
    sleepy.write_text(
        # It sets a variable for libraries, so it is no shim that may be passed by.
        "#!/bin/sh\nexport OMP_NUM_THREADS=1\n"
        f'case "$*" in *" run "*) exec sleep 60;; esac\nexec {sys.executable} "$@"\n'
    )
    sleepy.chmod(0o755)
    hosts = cluster.hosts(2)
    hosts[1]["python"] = str(sleepy)
    timing = {"start_after": "3s", "heartbeat": "0.5s", "unreachable_after": "2s", "lost_after": "8s"}
    spec = cluster.spec(hosts=hosts, timing=timing, restart={"without_progress_max": 1})
    done = cluster.orch("up", spec, "--wait", timeout=60)
    run = cluster.run()
    assert (done.returncode, run["phase"]) == (1, "FAILED")
    assert {event["task"] for event in cluster.events(kind="missing")} == {"worker:1"}
    assert f"worker:1 on {run['tasks'][1]['host']}" in run["reason"]


_OCCUPY = """
import socket, time
taken = []
for port in range(20000, 20064, 2):
    taken.append(socket.socket())
    taken[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # the tests before have left some in TIME_WAIT
    taken[-1].bind(("0.0.0.0", port))
    taken[-1].listen()
print("taken", flush=True)
time.sleep(60)
"""


@pytest.mark.fault(86)
def test_row_86_a_rank_that_fails_before_the_chief_ends_with_0_is_a_failure(local_cluster: Cluster) -> None:
    cluster = local_cluster
    spec = cluster.spec(
        script="rank_fails.py", strategy="processes", checkpoint=False, restart={"without_progress_max": 1}
    )
    done = cluster.orch("up", spec, "--wait", timeout=60)
    assert done.returncode == 1, done.stdout
    assert cluster.run()["phase"] == "FAILED"
    why = cluster.ok("why", "t")
    assert "worker:1" in why
    assert "cannot open /data/shard-1" in why
    assert "after the chief's exit 0" not in why
