"""Rows of the table of faults that are proved without TensorFlow elsewhere: here with it, over SSH, two workers."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.cluster import Cluster, digests, lab_of, wait_until
from tests.cluster.lab import LabHost
from tests.cluster.processes import agents, freeze, is_alive
from tests.faults.times import FaultTimes, unix_time

pytestmark = [pytest.mark.lab, pytest.mark.tensorflow, pytest.mark.long, pytest.mark.timeout(300)]

EXAMPLES = Path(__file__).parents[2] / "examples"
QUICK = {"heartbeat": "0.5s", "unreachable_after": "2s", "lost_after": "4s", "kill_grace": "5s"}
PATIENT = {**QUICK, "stall_after": "10m"}
"""For tests that freeze a task for as long as something else takes."""
START_S = 90.0
"""Importing TensorFlow takes seconds; on a busy machine, many."""


def spec(cluster: Cluster, script: str, *args: str, **run: Any) -> str:
    """For one of examples/, or for the trainer that fails as it is told to."""
    where = {"workdir": str(EXAMPLES)} if (EXAMPLES / script).exists() else {}
    given = {"restart": {"backoff": "0.5s"}, "env": {"TF_CPP_MIN_LOG_LEVEL": "2"}, **where, **run}
    return cluster.spec(*args, script=script, **given)


def ended(cluster: Cluster, *phases: str) -> dict[str, Any]:
    """Wait for the end of the run, which must be one of `phases`."""
    run = cluster.wait_phase("SUCCEEDED", "FAILED", timeout=150)
    assert run["phase"] in phases, cluster.ok("events", "t") + cluster.ok("logs", "t", "--tail", "60")
    return run


def resumed_at(cluster: Cluster) -> int:
    """Return the step from which its only restart resumed."""
    (resumed,) = cluster.events(kind="resumed")
    return int(resumed["data"]["global_step"])


def generation_directory(cluster: Cluster, run: dict[str, Any]) -> Path:
    return cluster.directory / "ckpt" / f"gen-{run['generation']:06d}"


def goes_on_after_its_first_end(cluster: Cluster, fault_times: FaultTimes) -> None:
    """Measure from the first end of a task, which comes when it likes, to the first step of the next generation."""
    cluster.wait(
        lambda run: run["generation"] > 1 or run["phase"] in ("STOPPING", "BACKOFF"), timeout=START_S
    )
    fault_times.inject(generation=1, at=unix_time(cluster.events(kind="task-exited")[0]))
    fault_times.wait_again(cluster, timeout=START_S)


@pytest.mark.fault(42)
def test_row_42_a_torn_shard_is_passed_over_and_named(cluster: Cluster, fault_times: FaultTimes) -> None:
    args = ("--save-every", "10")
    cluster.ok("up", spec(cluster, "checkpoint_manager.py", "--steps", "40", *args), timeout=120)
    first = ended(cluster, "SUCCEEDED")
    directory = generation_directory(cluster, first)
    shard = directory / "ckpt-40.data-00000-of-00001"
    os.truncate(shard, shard.stat().st_size // 2)
    fault_times.inject(first["generation"])  # nobody reads it before the next run
    cluster.ok(
        "up", spec(cluster, "checkpoint_manager.py", "--steps", "60", *args), "--continue", timeout=120
    )
    fault_times.wait_again(cluster, timeout=START_S)
    run = ended(cluster, "SUCCEEDED")
    mine = [event for event in cluster.events() if event["run"] == run["run_id"]]
    (rejected,) = [event["message"] for event in mine if event["kind"] == "checkpoint-rejected"]
    assert str(directory / "ckpt-40") in rejected
    assert str(directory / "ckpt-30") in rejected
    (resumed,) = [event["data"] for event in mine if event["kind"] == "resumed"]
    assert resumed["global_step"] == 30
    assert cluster.ok("logs", "t").count("starting at step 30") == 2, "TensorFlow took it, on both"


@pytest.mark.fault(43)
def test_row_43_a_script_that_restores_nothing_after_a_restart_is_warned_of(
    cluster: Cluster, fault_times: FaultTimes
) -> None:
    """Who has just begun a run with it is stopped: test_checkpoint_faults.py."""
    cluster.ok("up", spec(cluster, "tf_trainer.py", "--restore-nothing", "--steps", "400"), timeout=120)
    before = cluster.wait(lambda run: run["checkpoint"] is not None, timeout=START_S)
    fault_times.inject(before["generation"])
    os.kill(before["tasks"][1]["pid"], signal.SIGKILL)
    run = ended(cluster, "SUCCEEDED")
    fault_times.ended()
    assert run["restarts"] == 1
    said = f"step {resumed_at(cluster)} and worker:0 reports step 1: it trains again what was trained"
    assert any(said in warning for warning in run["warnings"]), run["warnings"]
    assert cluster.marked() == []


@pytest.mark.fault(13)
def test_row_13_a_script_that_fails_alike_on_all_tasks_ends_the_run(
    cluster: Cluster, fault_times: FaultTimes
) -> None:
    done = cluster.orch("up", spec(cluster, "tf_trainer.py", "--no-data"), "--wait", timeout=150)
    run = ended(cluster, "FAILED")
    fault_times.inject(at=unix_time(cluster.events(kind="task-exited")[0]))
    fault_times.ended(unix_time(cluster.events(kind="failed")[0]))
    assert (done.returncode, run["restarts"]) == (1, 1)
    assert "FileNotFoundError: no data set here" in run["first_cause"]["sentence"]
    assert any("FileNotFoundError" in line for line in run["first_cause"]["last_lines"])


@pytest.mark.fault(14)
def test_row_14_exit_42_after_a_checkpoint_goes_on_at_once(cluster: Cluster, fault_times: FaultTimes) -> None:
    restart = {"backoff": "20s", "without_progress_max": 1}  # neither may be touched
    args = ("--exit-42-at", "13", "--steps", "30")
    cluster.ok("up", spec(cluster, "tf_trainer.py", *args, restart=restart), timeout=120)
    goes_on_after_its_first_end(cluster, fault_times)
    assert ended(cluster, "SUCCEEDED")["restarts"] == 1
    (backoff,) = cluster.events(kind="backoff")
    assert "saved" in backoff["message"]
    assert "at once" in backoff["message"]
    assert resumed_at(cluster) == 13
    assert cluster.ok("logs", "t").count("starts at step 13") == 2


@pytest.mark.fault(19)
def test_row_19_failures_after_the_chiefs_exit_0_are_a_warning(
    cluster: Cluster, fault_times: FaultTimes
) -> None:
    timing = {**QUICK, "kill_grace": "20s"}  # TensorFlow takes some seconds to see that the chief is gone
    cluster.ok(
        "up", spec(cluster, "tf_trainer.py", "--late-failure", "--steps", "10", timing=timing), timeout=120
    )
    run = ended(cluster, "SUCCEEDED")
    fault_times.inject(at=run["tasks"][0]["ended_time"])
    fault_times.ended(unix_time(cluster.events(kind="succeeded")[0]))
    assert run["restarts"] == 0
    assert [task["exit_code"] for task in run["tasks"]] == [0, 1]
    assert any("worker:1" in warning for warning in run["warnings"]), cluster.ok("events", "t") + cluster.ok(
        "logs", "t"
    )


@pytest.mark.parametrize("stall_after", ["4s", "60s"], ids=["before TensorFlow", "after TensorFlow"])
@pytest.mark.fault(10)
def test_row_10_a_frozen_worker_is_found_and_named(
    cluster: Cluster, fault_times: FaultTimes, stall_after: str
) -> None:
    args = ("--steps", "400", "--save-every", "10")
    timing = {**QUICK, "stall_after": stall_after}
    cluster.ok("up", spec(cluster, "checkpoint_manager.py", *args, timing=timing), timeout=120)
    before = cluster.wait_step(40, timeout=START_S)
    fault_times.inject(before["generation"])
    os.kill(before["tasks"][1]["pid"], signal.SIGSTOP)
    after = fault_times.wait_again(cluster, timeout=START_S)
    stacks = cluster.events(kind="stacks")
    if stall_after == "4s":
        fault_times.noticed_by(cluster.events(kind="stalled"))
        seen = stacks[0]["data"]["stacks"]
        assert seen.keys() == {"worker:0", "worker:1"}
        assert "T (stopped)" in seen["worker:1"], "the kernel speaks for the frozen one"
        assert "checkpoint_manager.py" in seen["worker:0"], "the other is within TensorFlow, and answers"
        assert stacks[0]["task"] == "worker:1"
    else:
        fault_times.noticed_by(cluster.events(kind="stopping"))
        assert stacks == [], "TensorFlow ended the other first, for want of heartbeats"
    assert (after["first_cause"]["task"], after["first_cause"]["cause"]) == ("worker:1", "stalled")
    assert ended(cluster, "SUCCEEDED")["restarts"] == 1
    (why,) = json.loads(cluster.ok("why", "t", "--json"))["first_causes"]
    assert (why["task"], why["cause"]) == ("worker:1", "stalled"), why
    assert resumed_at(cluster) >= 30


@pytest.mark.fault(11)
def test_row_11_a_frozen_agent_keeps_no_gang_from_starting_again(
    cluster: Cluster, fault_times: FaultTimes
) -> None:
    args = ("--steps", "3000", "--save-every", "10")
    cluster.ok("up", spec(cluster, "checkpoint_manager.py", *args, timing=QUICK), timeout=120)
    before = cluster.wait(lambda run: run["checkpoint"] is not None, timeout=START_S)
    host_dir = lab_of(cluster).hosts[1].host_dir
    (agent,) = agents(host_dir)
    fault_times.inject(before["generation"])
    os.kill(agent, signal.SIGSTOP)
    try:
        os.kill(before["tasks"][0]["pid"], signal.SIGKILL)  # the other's end is ordered of who is frozen
        fault_times.wait_again(cluster, timeout=START_S)
        fault_times.noticed_by(cluster.events(kind="host-unreachable"))
    finally:
        os.kill(agent, signal.SIGCONT)
    wait_until(lambda: agent not in agents(host_dir), "it has read what it was ordered, and ended")
    # Frozen for longer than TensorFlow waits for a peer, the new gang may fail once more: that is the test's doing.
    assert ended(cluster, "SUCCEEDED")["restarts"] in (1, 2), cluster.ok("events", "t")
    resumed = cluster.events(kind="resumed")[0]
    assert resumed["data"]["global_step"] >= before["checkpoint"]["global_step"]


@pytest.mark.fault(20)
def test_row_20_a_port_lost_at_the_bind_is_one_restart(cluster: Cluster, fault_times: FaultTimes) -> None:
    # One failure of the script's own would end the run.
    restart = {"backoff": "0.5s", "without_progress_max": 1}
    cluster.ok("up", spec(cluster, "tf_trainer.py", "--lose-port", "--steps", "20", restart=restart))
    goes_on_after_its_first_end(cluster, fault_times)
    assert ended(cluster, "SUCCEEDED")["restarts"] == 1
    (why,) = json.loads(cluster.ok("why", "t", "--json"))["first_causes"]
    assert (why["task"], why["cause"]) == ("worker:1", "port"), why
    assert "port" in cluster.ok("logs", "t", "worker:1")


@pytest.mark.fault(25)
def test_row_25_a_host_that_is_cut_off_is_waited_for_and_the_run_goes_on(
    cluster: Cluster, victim: Callable[[int], LabHost], fault_times: FaultTimes
) -> None:
    args = ("--steps", "400", "--save-every", "10")
    cluster.ok("up", spec(cluster, "checkpoint_manager.py", *args, timing=QUICK), timeout=120)
    before = cluster.wait_step(40, timeout=START_S)
    host = victim(1)
    fault_times.inject(before["generation"])
    host.cut()
    lost = cluster.wait(lambda run: "waiting for host-1" in run["reason"], timeout=60)
    fault_times.noticed_by(cluster.events(kind="host-unreachable"))
    assert lost["first_cause"]["cause"] == "host lost"
    assert lost["tasks"][0]["phase"] in ("EXITED", "LOST"), "nobody is left in an all-reduce that never ends"
    host.heal()
    fault_times.wait_again(cluster, timeout=START_S)
    run = ended(cluster, "SUCCEEDED")
    assert run["restarts"] == 1
    assert resumed_at(cluster) >= 30, "from a checkpoint that was verified"
    assert cluster.ok("logs", "t").count(f"starting at step {resumed_at(cluster)}\n") == 2


def has_saved(cluster: Cluster, run: dict[str, Any]) -> bool:
    """Whether this generation has a checkpoint of its own that was verified."""
    checkpoint = run["checkpoint"]
    return checkpoint is not None and str(generation_directory(cluster, run)) in checkpoint["path"]


@pytest.mark.long  # so is the next one: test_network_faults.py has both zombies without TensorFlow
@pytest.mark.fault(27)
def test_row_27_an_old_chief_that_comes_back_is_ended_and_has_touched_nothing(
    cluster: Cluster, victim: Callable[[int], LabHost], fault_times: FaultTimes
) -> None:
    first, second, spare = cluster.hosts(3)
    hosts = [first, second, {**spare, "spare": True}]
    args = ("--steps", "5000", "--save-every", "10")  # it still trains once the new group has a checkpoint
    cluster.ok("up", spec(cluster, "checkpoint_manager.py", *args, hosts=hosts, timing=PATIENT), timeout=120)
    before = cluster.wait(lambda run: run["checkpoint"] is not None, timeout=START_S)
    old_chief = before["tasks"][0]["pid"]
    host = victim(0)
    freeze(old_chief)  # or TensorFlow would end it, for want of its peer
    fault_times.inject(before["generation"])
    host.cut()
    fault_times.wait_again(cluster, timeout=START_S)
    after = cluster.wait(lambda run: has_saved(cluster, run), timeout=START_S)
    assert is_alive(old_chief), "or this shows nothing"
    gang = [task["pid"] for task in after["tasks"]]
    for pid in gang:
        freeze(pid)
    files = digests(generation_directory(cluster, after))
    os.kill(old_chief, signal.SIGCONT)
    host.heal()
    wait_until(lambda: not is_alive(old_chief), "it is ended")
    assert digests(generation_directory(cluster, after)) == files, "bit for bit"
    for pid in gang:
        os.kill(pid, signal.SIGCONT)
    # Frozen for longer than TensorFlow waits for a peer, the new gang may fail once more: that is the test's doing.
    assert ended(cluster, "SUCCEEDED")["restarts"] in (1, 2), cluster.ok("events", "t")
    resumed = cluster.events(kind="resumed")[0]
    assert resumed["data"]["global_step"] >= before["checkpoint"]["global_step"]


@pytest.mark.long
@pytest.mark.fault(28)
def test_row_28_a_zombie_chief_removes_only_its_own_backup(
    cluster: Cluster, victim: Callable[[int], LabHost], fault_times: FaultTimes
) -> None:
    first, *others = cluster.hosts(3)
    hosts = [first, *({**other, "spare": True} for other in others)]
    # A checkpoint is verified every ten seconds at most: the successor must train for longer.
    args = ("--epochs", "60", "--save-every", "10")
    cluster.ok("up", spec(cluster, "digits.py", *args, tasks=1, hosts=hosts, timing=PATIENT), timeout=120)
    before = cluster.wait(lambda run: run["checkpoint"] is not None, timeout=START_S)
    zombie = before["tasks"][0]["pid"]
    freeze(zombie)  # or it would come to its end while its successor imports TensorFlow
    fault_times.inject(before["generation"])
    victim(0).cut()
    fault_times.wait_again(cluster, timeout=START_S)
    after = cluster.wait(lambda run: has_saved(cluster, run), timeout=START_S)
    successor = after["tasks"][0]["pid"]
    freeze(successor)  # its files keep one content while the zombie lives beside them
    backup = generation_directory(cluster, after) / "backup"
    files = digests(backup)
    assert files
    os.kill(zombie, signal.SIGCONT)
    # It sees that its successor has begun, and ends itself; or it comes to its end, where BackupAndRestore removes one.
    wait_until(lambda: not is_alive(zombie), "the zombie has ended", timeout=180)
    assert digests(backup) == files, "bit for bit"
    os.kill(successor, signal.SIGCONT)
    assert ended(cluster, "SUCCEEDED")["restarts"] == 1
    assert resumed_at(cluster) > 0


@pytest.mark.fault(91)
def test_row_91_workers_that_run_different_programs_are_no_network_fault(cluster: Cluster) -> None:
    cluster.ok("up", spec(cluster, "workers_part.py", checkpoint=False), "--detach")
    run = ended(cluster, "FAILED")
    found = run["first_cause"]
    assert found["cause"] == "different programs", found
    assert "parted before collective" in found["means"]
    assert "[5]" in found["means"]
    assert "[6]" in found["means"], "which of the two is named first is chance"
    assert "without a seed" in found["advice"]
    assert run["restarts"] == 1, "the same failure twice ends it"


@pytest.mark.fault(92)
def test_row_92_an_optimizer_that_was_changed_before_a_resume_is_said_to_be_that(cluster: Cluster) -> None:
    one = {"strategy": "single"}
    cluster.ok("up", spec(cluster, "changed_model.py", tasks=1, **one), timeout=120)
    ended(cluster, "SUCCEEDED")
    saved = digests(generation_directory(cluster, cluster.run()))
    cluster.ok(
        "up",
        spec(cluster, "changed_model.py", "--optimizer", "sgd", tasks=1, **one),
        "--continue",
        "--detach",
    )
    run = ended(cluster, "FAILED")
    found = run["first_cause"]
    assert found["cause"] == "resume-mismatch", found
    assert found["sentence"].endswith("it did not resume from it")
    assert "the model or the optimizer was changed" in found["means"]
    assert sum(name.endswith(".weights.h5") for name in saved) == 3
    assert digests(cluster.directory / "ckpt/gen-000001") == saved, "nothing is removed"


@pytest.mark.parametrize(
    ("named", "env", "found"),
    [
        pytest.param("no-such-host.invalid", {}, "knows no address of this name", id="name"),
        pytest.param(
            "127.0.0.1",
            {"http_proxy": "http://127.0.0.1:9"},
            "gRPC goes through",
            id="proxy",
            marks=pytest.mark.long,
        ),
    ],
)
@pytest.mark.fault(85)
def test_row_85_tensorflow_that_waits_for_its_peers_is_connecting(
    local_cluster: Cluster, named: str, env: dict[str, str], found: str
) -> None:
    """While it does, it holds Python's lock: the runtime says it before, and the shim looks from beside."""
    file = spec(
        local_cluster,
        "tf_trainer.py",
        hosts=[{**local_cluster.hosts(2)[0], "data_address": named}],
        env={"TF_CPP_MIN_LOG_LEVEL": "2", **env},
        timing={**QUICK, "start_after": "60s"},
        restart={"without_progress_max": 1},
    )
    done = local_cluster.orch("up", file, "--no-check", timeout=200)
    run = local_cluster.run()
    assert (done.returncode, run["goodput"]) == (1, None), done.stderr
    assert "connecting for" in done.stderr
    assert run["first_cause"]["cause"] == "not connected", run["first_cause"]
    assert found in run["first_cause"]["sentence"]
    assert not local_cluster.events(kind="stalled")
