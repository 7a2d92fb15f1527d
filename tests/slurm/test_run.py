"""Runs on a real Slurm, from `orch up --on slurm` to the end of the job."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.cluster import Login

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(180)]

LEAVES = """import os
from orchestrator import runtime
os.makedirs("many")
for number in range(120):
    with open(f"many/{number}.bin", "wb") as file:
        file.write(bytes(1 << 16))
runtime.report(1)
"""


def test_a_run_from_submission_to_success(login: Login) -> None:
    file = login.spec("--steps", "60", "--pace", "0.05")
    login.orch("up", file, "--on", "slurm", "--wait", timeout_s=120)
    assert "is submitted" in login.stderr
    assert login.status()["phase"] == "SUCCEEDED"
    assert login.orch("logs", "t")


def training(run: dict[str, Any]) -> bool:
    return run["phase"] == "RUNNING" and (run["global_step"] or 0) > 10


def tasks_of(login: Login, index: int) -> dict[int, str]:
    """Return the trainers on a node, by this machine's pids."""
    return {pid: line for pid, line in login.lab.processes(index).items() if "fake_trainer.py" in line}


def is_keeper(line: str) -> bool:
    """Whether it is a node's keeper, and not the srun that has started it."""
    return " keeper " in line and not line.startswith("srun")


@pytest.mark.fault(74)
def test_coordinator_and_channels_die_and_the_same_tasks_train_on(login: Login) -> None:
    login.orch("up", login.spec("--pace", "0.05"), "--on", "slurm", timeout_s=120)
    before = login.wait(training)
    pids = {task["pid"] for task in before["tasks"]}
    everywhere = {pid: line for i in (1, 2, 3) for pid, line in login.lab.processes(i).items()}
    coordinator = next(pid for pid, line in everywhere.items() if "coordinator run" in line)
    sruns = [pid for pid, line in everywhere.items() if line.startswith("srun") and " relay " in line]
    assert sruns
    for pid in [coordinator, *sruns]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    after = login.wait(lambda run: training(run) and run["epoch"] > before["epoch"])
    assert {task["pid"] for task in after["tasks"]} == pids
    assert (after["generation"], after["restarts"]) == (before["generation"], 0)
    assert "another one takes up the run" in login.log()
    login.orch("kill", "t", timeout_s=60)
    login.wait(lambda run: run["phase"] == "KILLED")


@pytest.mark.long
def test_a_task_is_killed_and_the_run_says_why(login: Login) -> None:
    login.orch("up", login.spec("--pace", "0.05"), "--on", "slurm", timeout_s=120)
    before = login.wait(training)
    victim = next(task for task in before["tasks"] if task["task"] == "worker:1")
    pids = tasks_of(login, login.index_of(victim["host"]))
    os.kill(max(pids), signal.SIGKILL)
    after = login.wait(lambda run: training(run) and run["generation"] == 2)
    assert after["restarts"] == 1
    assert "worker:1" in login.orch("why", "t")


@pytest.mark.long
@pytest.mark.fault(75)
def test_a_node_loses_its_power_and_the_spare_takes_over(login: Login) -> None:
    login.orch("up", login.spec("--pace", "0.05", spares=1), "--on", "slurm", timeout_s=120)
    before = login.wait(training)
    batch_host = login.lab.job(login.job)["BatchHost"]
    victim = next(task["host"] for task in before["tasks"] if task["host"] != batch_host)
    index = login.index_of(victim)
    login.lab.power_off(index)
    try:
        after = login.wait(lambda run: training(run) and run["generation"] >= 2)
        assert victim not in {task["host"] for task in after["tasks"]}
        assert after["global_step"] >= 10, "it resumed from a checkpoint"
        login.orch("kill", "t", timeout_s=60, check=False)
    finally:
        login.lab.power_on(index)


@pytest.mark.long
@pytest.mark.fault(79)
def test_slurmd_dies_and_nothing_notices(login: Login) -> None:
    login.orch("up", login.spec("--pace", "0.05"), "--on", "slurm", timeout_s=120)
    before = login.wait(training)
    victim = login.index_of(before["tasks"][1]["host"])
    login.lab.kill_slurmd(victim)
    after = login.wait(lambda run: run["global_step"] > before["global_step"] + 40)
    assert after["restarts"] == 0
    login.lab.start_slurmd(victim)


@pytest.mark.parametrize("requeue", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.fault(76)
def test_scancel_leaves_nothing(login: Login, requeue: bool) -> None:
    file = login.spec("--pace", "0.05", slurm={"requeue": requeue}, env={"API_TOKEN": "hush-hush"})
    login.orch("up", file, "--on", "slurm", timeout_s=120)
    login.wait(training)
    assert (login.state / "slurm" / "t" / "submitted.json").exists() == requeue, "nobody reads it again"
    login.lab.run("scancel", login.job)
    login.lab.wait_empty()
    for index in range(1, login.lab.count + 1):
        assert login.lab.processes(index) == {}
    assert not list(Path("/tmp").glob(f"orch-slurm-0-{login.job}.*"))
    assert login.status()["phase"] == "KILLED", "the last status can be read without a job"
    login.orch("gc", "--yes", check=False)  # refused where nothing is left
    kept = [path for path in (login.state / "slurm" / "t").rglob("*") if path.is_file()]
    assert not [path for path in kept if b"hush-hush" in path.read_bytes()]


def test_a_job_that_waits_says_why_and_can_be_killed(login: Login) -> None:
    login.lab.run("sbatch", "--exclusive", "--nodes=3", "--output=/dev/null", "--wrap", "sleep 100")
    up = subprocess.Popen(
        [sys.executable, "-m", "orchestrator.cli.main", "up", login.spec(), "--on", "slurm"],
        env=login.environ, cwd=login.directory, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert up.stderr is not None
    said = ""
    while "waits for its nodes: Resources" not in said and "waits for its nodes: Priority" not in said:
        line = up.stderr.readline()
        assert line, said
        said += line
    login.orch("status", "t", check=False)
    assert "PENDING" in login.stderr
    login.orch("kill", "t")
    assert up.wait(30) == 3
    up.stderr.close()


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.fault(77)
def test_preemption_saves_and_the_run_goes_on_when_it_is_queued_again(login: Login) -> None:
    file = login.spec("--pace", "0.05", slurm={"requeue": True, "partition": "polite"})
    login.orch("up", file, "--on", "slurm", timeout_s=120)
    before = login.wait(training)
    login.lab.run(
        "sbatch", "--partition=high", "--exclusive", "--nodes=3", "--output=/dev/null", "--wrap", "sleep 5"
    )
    login.wait(lambda run: run["phase"] == "KILLED" or run["run_id"] != before["run_id"], 40)
    assert "Slurm cancels or preempts job" in login.log()
    login.lab.start_now(login.job)
    after = login.wait(lambda run: training(run) and run["run_id"] != before["run_id"], 150)
    assert after["generation"] > before["generation"], "directories are never used twice"
    assert after["global_step"] >= 10


@pytest.mark.long
def test_a_job_that_slurm_itself_queues_again_goes_on(login: Login) -> None:
    """Slurm counts the restart first, and then sends the signal, as where PreemptMode=REQUEUE gives no grace."""
    login.orch("up", login.spec("--pace", "0.05", slurm={"requeue": True}), "--on", "slurm", timeout_s=120)
    before = login.wait(training)
    login.lab.run("scontrol", "requeue", login.job)
    login.lab.start_now(login.job)
    after = login.wait(lambda run: training(run) and run["run_id"] != before["run_id"], 60)
    assert after["global_step"] >= 10, "it resumed from a checkpoint"


@pytest.mark.long
def test_outputs_that_take_longer_than_the_job_lingers_arrive_whole(login: Login) -> None:
    workdir = login.directory / "work"
    workdir.mkdir()
    (workdir / "leaves.py").write_text(LEAVES)
    file = login.spec(script="leaves.py", workdir=str(workdir), outputs=["many/*.bin"], nodes=1)
    login.orch("up", file, "--on", "slurm", "--wait", timeout_s=120)
    login.lab.wait_empty()
    left = login.status()["outputs"]
    assert (left["pending"], left["problems"]) == (False, [])
    assert len(list(Path(left["directory"]).rglob("*.bin"))) == 120


@pytest.mark.long
def test_a_batch_step_is_killed_and_the_next_job_goes_on(login: Login) -> None:
    login.orch("up", login.spec("--pace", "0.05"), "--on", "slurm", timeout_s=120)
    login.wait(training)
    everywhere = {pid: line for i in (1, 2, 3) for pid, line in login.lab.processes(i).items()}
    os.kill(
        next(pid for pid, line in everywhere.items() if "orchestrator.client.batch" in line), signal.SIGKILL
    )
    login.lab.wait_empty()
    for command in ("status", "kill"):
        login.orch(command, "t", check=False)
        assert "FAILED: no coordinator is running" in login.stderr
        assert "Starting the coordinator" not in login.stderr
    login.orch("up", login.spec("--steps", "60", "--pace", "0.05"), "--on", "slurm", "--wait", timeout_s=120)


@pytest.mark.long
@pytest.mark.fault(77)
def test_one_node_leaves_and_the_spare_takes_over_before_it_is_gone(login: Login) -> None:
    """Slurm takes jobs away as a whole; a site that drains one node sends its steps the signal."""
    login.orch("up", login.spec("--pace", "0.05", spares=1), "--on", "slurm", timeout_s=120)
    before = login.wait(training)
    batch_host = login.lab.job(login.job)["BatchHost"]
    victim = next(task["host"] for task in before["tasks"] if task["host"] != batch_host)
    keeper = next(pid for pid, line in login.lab.processes(login.index_of(victim)).items() if is_keeper(line))
    os.kill(keeper, signal.SIGTERM)
    after = login.wait(lambda run: training(run) and run["generation"] >= 2, 60)
    assert victim not in {task["host"] for task in after["tasks"]}
    assert after["global_step"] >= 10, "it resumed from a checkpoint"
    (left,) = [host for host in after["hosts"] if host["host"] == victim]
    assert left["state"] == "leaving"
    assert "Slurm cancels or preempts job" in left["reason"]
    kinds = [json.loads(line)["kind"] for line in login.orch("events", "t", "--json").splitlines()]
    assert "host-leaves" in kinds
    assert "host-lost" not in kinds


@pytest.mark.long
def test_gpus_are_those_that_slurm_gave(login: Login) -> None:
    login.show_gpus()
    file = login.spec("--pace", "0.05", gpus=2)
    login.orch("up", file, "--on", "slurm", timeout_s=120)
    run = login.wait(training)
    for task in run["tasks"]:
        pid = max(tasks_of(login, login.index_of(task["host"])))
        environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        assert b"CUDA_VISIBLE_DEVICES=0,1" in environ


@pytest.mark.long
def test_a_run_is_seen_and_drained_from_any_node(login: Login) -> None:
    login.orch("up", login.spec("--pace", "0.05", spares=1), "--on", "slurm", timeout_s=120)
    before = login.wait(training)
    spare = next(i for i in (1, 2, 3) if login.lab.name(i) not in {t["host"] for t in before["tasks"]})
    told = [
        f"{name}={login.environ[name]}"
        for name in ("HOME", "ORCH_STATE_DIR", "ORCH_RUNTIME_DIR", "PYTHONPATH")
    ]
    said = login.lab.on(
        spare,
        "env",
        *told,
        sys.executable,
        "-m",
        "orchestrator.cli.main",
        "drain",
        "t",
        before["tasks"][1]["host"],
    )
    assert "is drained" in said
    login.wait(lambda run: training(run) and login.lab.name(spare) in {t["host"] for t in run["tasks"]})
    document = json.loads(login.orch("events", "t", "--json").splitlines()[0])
    assert document["run"] == before["run_id"]


@pytest.mark.long
@pytest.mark.tensorflow
@pytest.mark.timeout(400)
@pytest.mark.fault(75)
def test_tensorflow_over_two_nodes_loses_one_and_trains_on(login: Login) -> None:
    file = login.spec("--steps", "300", "--pace", "0.1", script="tf_trainer.py", spares=1)
    login.orch("up", file, "--on", "slurm", timeout_s=180)
    before = login.wait(training, 120)
    batch_host = login.lab.job(login.job)["BatchHost"]
    victim = next(task["host"] for task in before["tasks"] if task["host"] != batch_host)
    index = login.index_of(victim)
    login.lab.power_off(index)
    try:
        after = login.wait(lambda run: training(run) and run["generation"] >= 2, 120)
        assert victim not in {task["host"] for task in after["tasks"]}
        login.wait(lambda run: run["phase"] == "SUCCEEDED", 120)
    finally:
        login.lab.power_on(index)


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.fault(77)
def test_the_time_limit_is_near_and_the_run_saves(login: Login) -> None:
    """Slurm warns two minutes before the limit; the limit of this job is two minutes and some."""
    login.orch("up", login.spec("--pace", "0.05", slurm={"time": "00:03:00"}), "--on", "slurm", timeout_s=120)
    before = login.wait(training)
    after = login.wait(lambda run: run["phase"] == "KILLED", 150)
    assert after["run_id"] == before["run_id"]
    assert "leave: the time limit of job" in after["reason"]
    assert "saved at step" in after["reason"]
    why = login.orch("why", "t")
    assert "the time limit of job" in why
    assert "saved at step" in why, "the coordinator has ended, but the run's end is known"
