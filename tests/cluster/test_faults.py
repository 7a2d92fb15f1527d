"""The rows of the table of faults, with real sshd, real processes, and a trainer without TensorFlow."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import orchestrator
from tests.cluster.cluster import Cluster
from tests.cluster.processes import agents, is_alive, listens_at, parent
from tests.faults.times import FaultTimes

pytestmark = pytest.mark.lab

PACKAGE = Path(orchestrator.__file__).parent


def test_trains_over_ssh_to_the_end_and_leaves_nothing(cluster: Cluster) -> None:
    done = cluster.orch("up", cluster.spec("--steps", "60", tasks=3), "--wait", timeout=60)
    assert done.returncode == 0, done.stderr
    run = cluster.run()
    assert run["phase"] == "SUCCEEDED"
    assert run["run_id"] == done.stdout.strip()
    assert run["restarts"] == 0
    assert [task["exit_code"] for task in run["tasks"]] == [0, 0, 0]
    assert set(run["proof"]["hosts"]) == {host.name for host in cluster.lab.hosts}  # type: ignore[union-attr]
    assert cluster.marked() == []
    assert "worker:2 done at step 60" in cluster.ok("logs", "t", "worker:2")


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
    assert fault_times.measured["noticed_s"] < 10.0


@pytest.mark.fault(2)
def test_row_02_the_run_ends_while_no_coordinator_lives(cluster: Cluster) -> None:
    cluster.ok("up", cluster.spec("--steps", "150"))
    cluster.wait_step(20)
    pids = [task["pid"] for task in cluster.run()["tasks"]]
    cluster.kill_coordinator()
    deadline = time.monotonic() + 30
    while any(is_alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.1)
    ended = time.time()
    time.sleep(1.5)
    cluster.ok("coordinator", "start")
    run = cluster.wait_phase("SUCCEEDED", timeout=15)
    assert run["restarts"] == 0
    assert all(abs(task["ended_time"] - ended) < 1.4 for task in run["tasks"]), "the true time of the end"
    logged = cluster.ok("logs", "t", "worker:0")
    assert "worker:0 starts at step 0" in logged
    assert "worker:0 done at step 150" in logged
    assert "rotated away" not in logged


@pytest.mark.fault(3)
def test_row_03_agent_killed(cluster: Cluster, fault_times: FaultTimes) -> None:
    cluster.ok("up", cluster.spec())
    before = cluster.wait_step(20)
    host_dir = cluster.lab.hosts[0].host_dir  # type: ignore[union-attr]
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


@pytest.mark.fault(52)
def test_row_52_nothing_of_ours_listens_on_tcp(cluster: Cluster) -> None:
    cluster.ok("up", cluster.spec())
    tasks = cluster.wait_step(5)["tasks"]
    carriers = [pid for host in cluster.lab.hosts[:2] for pid in agents(host.host_dir)]  # type: ignore[union-attr]
    shims = [parent(task["pid"]) for task in tasks]
    assert len(carriers) >= 2
    for pid in (cluster.coordinator_pid, *carriers, *shims):
        assert listens_at(pid) == [], Path(f"/proc/{pid}/cmdline").read_bytes()
    for task in tasks:  # and this does find who listens: the script does
        assert listens_at(task["pid"]) == [int(task["address"].rpartition(":")[2])]


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


@pytest.mark.fault(8, 54)
def test_row_08_and_54_kill_ends_what_ignores_sigterm_and_may_be_repeated(cluster: Cluster) -> None:
    spec = cluster.spec()
    first = cluster.ok("up", spec)
    cluster.wait_step(10)
    assert cluster.ok("up", spec) == first, "the same plan again is the run that is there"
    killed = cluster.orch("kill", "t")
    assert killed.returncode == 0, killed.stderr
    assert cluster.run()["phase"] == "KILLED"
    assert cluster.marked() == []
    assert cluster.orch("kill", "t").returncode == 0


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
    spec = cluster.spec("--fail-at", "3", "--fail-task", "worker:1", checkpoint=False, restart=restart)
    done = cluster.orch("up", spec, "--wait", timeout=90)
    run = cluster.run()
    assert (done.returncode, run["phase"], run["restarts"]) == (1, "FAILED", 3)
    waits = [
        float(e["message"].split("restart in ")[1].split(" s")[0]) for e in cluster.events(kind="backoff")
    ]
    assert len(waits) == 3
    assert all(
        abs(wait - expected) <= 0.2 * expected + 0.06
        for wait, expected in zip(waits, (0.25, 0.5, 1.0), strict=True)
    )
    assert run["first_cause"]["task"] == "worker:1"
    assert "4 failures in a row" in run["reason"]


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
    taker = cluster.lab.hosts[0].popen(sys.executable, "-c", _OCCUPY)  # type: ignore[union-attr]
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
def test_row_20_a_port_lost_at_the_bind_is_one_restart_and_not_the_scripts_fault(
    cluster: Cluster, fault_times: FaultTimes
) -> None:
    # A failure of the script's own would end the run: it may have one.
    restart = {"backoff": "0.5s", "without_progress_max": 1}
    spec = cluster.spec("--steps", "60", "--lose-port", "--fail-task", "worker:1", restart=restart)
    fault_times.inject()
    done = cluster.orch("up", spec, "--wait", timeout=60)
    assert done.returncode == 0, cluster.ok("events", "t")
    fault_times.noticed_by(cluster.events(kind="task-exited"))
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
        f'#!/bin/sh\ncase "$*" in *" run "*) exec sleep 60;; esac\nexec {sys.executable} "$@"\n'
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


@pytest.mark.fault(24)
def test_row_24_the_head_is_cut_off_from_a_host(cluster: Cluster, fault_times: FaultTimes) -> None:
    assert cluster.lab is not None
    cluster.ok("up", cluster.spec(tasks=3))
    before = cluster.wait_step(20)
    victim = cluster.lab.hosts[1]
    fault_times.inject()
    victim.drop(source=cluster.lab.head_address, to=cluster.lab.head_address)
    try:
        cut = cluster.wait(lambda run: run["tasks"][1]["phase"] == "UNREACHABLE", timeout=20)
        fault_times.noticed_by(cluster.events(kind="host-unreachable"))
        assert "the other tasks make progress" in cluster.wait_step(cut["global_step"] + 200)["reason"]
    finally:
        victim.heal()
    after = cluster.wait(lambda run: run["tasks"][1]["phase"] == "RUNNING", timeout=40)
    assert (after["restarts"], after["phase"]) == (0, "RUNNING")
    assert [t["pid"] for t in after["tasks"]] == [t["pid"] for t in before["tasks"]]
    assert cluster.events(kind="host-unreachable")
    assert cluster.events(kind="host-back")


@pytest.mark.fault(42)
def test_row_42_a_torn_checkpoint_is_passed_over_and_named(cluster: Cluster) -> None:
    cluster.ok("up", cluster.spec("--steps", "100"), "--wait")
    first = cluster.run()["generation"]
    good = cluster.directory / "ckpt" / f"gen-{first:06d}" / "model.weights.h5"
    content = good.read_bytes()
    torn = cluster.directory / "ckpt" / f"gen-{first + 1:06d}"
    torn.mkdir()
    (torn / "model.weights.h5").write_bytes(content[: len(content) // 2])
    done = cluster.orch("up", cluster.spec("--steps", "200"), "--wait", timeout=60)
    assert done.returncode == 0, done.stderr
    assert cluster.run()["generation"] == first + 2, "never into an older generation's directory"
    rejected = [e for e in cluster.events(kind="checkpoint-rejected") if e["run"] == cluster.run()["run_id"]]
    assert any(str(torn) in e["message"] and str(good) in e["message"] for e in rejected), "one event, both"
    resumed = [e for e in cluster.events(kind="resumed") if e["run"] == cluster.run()["run_id"]]
    assert resumed[0]["data"]["global_step"] == 100


@pytest.mark.fault(42)
def test_row_42_nothing_readable_is_never_step_0_in_silence(cluster: Cluster) -> None:
    torn = cluster.directory / "ckpt" / "gen-000001"
    torn.mkdir(parents=True)
    (torn / "model.weights.h5").write_bytes(b"\x89HDF\r\n\x1a\n torn")
    done = cluster.orch("up", cluster.spec("--steps", "30"), "--wait", timeout=60)
    assert done.returncode == 1
    assert "--from-scratch" in done.stderr
    assert (
        cluster.orch("up", cluster.spec("--steps", "30"), "--wait", "--from-scratch", timeout=60).returncode
        == 0
    )


@pytest.mark.fault(43)
def test_row_43_a_script_that_restores_nothing_is_stopped(cluster: Cluster) -> None:
    cluster.ok("up", cluster.spec("--steps", "100"), "--wait")
    done = cluster.orch("up", cluster.spec("--steps", "200", "--restore-nothing"), "--wait", timeout=60)
    run = cluster.run()
    assert (done.returncode, run["phase"], run["problem"]["code"]) == (1, "FAILED", "resume-mismatch")
    assert "100" in run["reason"]


@pytest.mark.fault(49)
def test_row_49_secrets_are_nowhere(cluster: Cluster) -> None:
    secret = "hunter2-correct-horse"
    spec = cluster.spec(script="show_secret.py", env={"WANDB_API_KEY": secret}, checkpoint=False)
    assert secret not in cluster.ok("plan", spec, "--json")
    done = cluster.orch("up", spec, "--wait", "--json", timeout=60)
    assert done.returncode == 0, cluster.ok("logs", "t")
    said = cluster.ok("logs", "t") + cluster.ok("events", "t", "--json") + cluster.ok("status", "--json")
    assert "the key has 21 characters" in said
    assert secret not in said + done.stdout + done.stderr
    hosts = [Path(host.host_dir) for host in cluster.lab.hosts]  # type: ignore[union-attr]
    for place in (cluster.directory / "state", *hosts):
        for path in place.rglob("*"):
            if path.is_file() and not path.is_socket() and "code" not in path.parts:
                assert secret.encode() not in path.read_bytes(), path


@pytest.mark.fault(5)
def test_row_05_a_new_version_of_the_agent_takes_over_the_old_shims(cluster: Cluster) -> None:
    cluster.ok("up", cluster.spec())
    before = cluster.wait_step(20)
    cluster.kill_coordinator()
    upgraded = cluster.directory / "upgraded"
    shutil.copytree(PACKAGE, upgraded / "orchestrator", ignore=shutil.ignore_patterns("__pycache__"))
    with (upgraded / "orchestrator" / "daemon" / "agent.py").open("a") as agent:
        agent.write("\n# another version: another bundle, another digest\n")
    cluster.env["PYTHONPATH"] = str(upgraded)
    cluster.ok("coordinator", "start")
    after = cluster.wait_step(before["global_step"] + 40, timeout=20)
    assert [t["pid"] for t in after["tasks"]] == [t["pid"] for t in before["tasks"]]
    assert after["restarts"] == 0
    bundles = Path(cluster.lab.hosts[0].host_dir, "bundle")  # type: ignore[union-attr]
    assert len({path.name.split(".")[0] for path in bundles.glob("*.pyz")}) >= 2, "the new one was pushed"
    assert cluster.orch("kill", "t").returncode == 0, "and the old shims obey it"


@pytest.mark.fault(54)
def test_row_54_ctrl_c_in_follow_only_detaches(cluster: Cluster) -> None:
    command = [sys.executable, "-m", "orchestrator.cli.main", "up", cluster.spec(), "--follow"]
    following = subprocess.Popen(
        command,
        env=cluster.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # Under a CI that runs in the background SIGINT is ignored, and a child inherits that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 20
    while cluster.orch("status", "t").returncode != 0 and time.monotonic() < deadline:
        time.sleep(0.2)
    before = cluster.wait_step(20)
    os.killpg(following.pid, signal.SIGINT)
    _, said = following.communicate(timeout=10)
    assert following.returncode == 0
    assert "orch logs -f" in said
    after = cluster.wait_step(before["global_step"] + 20)
    assert (after["phase"], after["restarts"]) == ("RUNNING", 0)


@pytest.mark.fault(54)
def test_row_54_up_and_kill_together_end_in_one_state(cluster: Cluster) -> None:
    spec = cluster.spec()
    command = [sys.executable, "-m", "orchestrator.cli.main"]
    cluster.ok("coordinator", "start")
    for _ in range(3):
        ups = [
            subprocess.Popen(
                [*command, "up", spec, "--detach"],
                env=cluster.env,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            for _ in range(2)
        ]
        kill = subprocess.Popen(
            [*command, "kill", "--all"], env=cluster.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for process in (*ups, kill):
            _, said = process.communicate(timeout=60)
            assert process.returncode == 0, said
    assert cluster.orch("kill", "--all").returncode == 0
    assert cluster.run()["phase"] == "KILLED"
    assert cluster.marked() == []


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
