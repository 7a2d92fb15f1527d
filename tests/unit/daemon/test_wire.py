"""What agents say becomes events; what is decided becomes orders; what is in no contract is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.core.actions import ReleaseTask, StartTask
from orchestrator.core.events import HostReported
from orchestrator.core.model import Budget, Cause, Facts, Problem, Progress, Run, Seed, Swept, new_run
from orchestrator.core.plan import Plan, TaskId, TaskPlan
from orchestrator.daemon.connection import wire
from tests.unit.core.transcript import make_plan

W0, W1 = TaskId("worker", 0), TaskId("worker", 1)
TASK: dict[str, Any] = {
    "task": "worker:0",
    "generation": 2,
    "phase": "running",
    "pid": 4242,
    "port": 20001,
    "global_step": 120,
    "epoch": 3,
    "metrics": {"loss": 0.5, "acc": None},
    "steps_per_s": 3.5,
    "cpu_percent": 99.0,
    "rss_bytes": 1 << 30,
    "peak_rss_bytes": 2 << 30,
    "log_bytes": 77,
    "log_dropped_bytes": 5,
    "heartbeat_age_s": 0.4,
    "step_age_s": 0.25,
    "runtime_age_s": 1.5,
    "error": None,
    "said": [{"kind": "keras", "message": "patched"}],
    "exit": None,
}
EXIT: dict[str, Any] = {
    "code": 1,
    "signal": None,
    "ago_s": 2.5,
    "ended_at": 1.7e9,
    "ordered": False,
    "cause": "script",
    "last_lines": ["a", "b"],
    "peak_rss_bytes": 9,
    "swept": "cgroup",
    "left": [{"pid": 5, "why": "D state"}],
}


def told(task: dict[str, Any], host: dict[str, Any] | None = None) -> HostReported:
    report = {"host": host if host is not None else {"cpu_percent": 5.0, "memory_percent": 50.0}}
    return wire.host_reported("a", "r", {**report, "runs": {"r": [task], "other": []}}, at=100.0)


def test_what_is_slow_on_the_way_to_a_host() -> None:
    assert wire.slowness({"boot_id": "b"}) is None
    assert wire.slowness({"slow": {"connect_s": 15.2}}) == "sshd let us in after 15 s"
    assert wire.slowness({"slow": {"connect_s": 6.0, "shell_s": 2.5}}) == (
        "sshd let us in after 6 s; the rc files of its login shell took 2.5 s"
    )


def test_a_report_is_read_whole() -> None:
    event = told(TASK)
    assert (event.at, event.host, event.cpu_percent, event.memory_percent) == (100.0, "a", 5.0, 50.0)
    (task,) = event.tasks
    assert (task.task, task.generation, task.phase, task.pid, task.port) == (W0, 2, "running", 4242, 20001)
    assert task.progress == Progress(120, 3, {"loss": 0.5}, 3.5, 99.0, 1 << 30, 77, 5, 0.4, 0.25, 1.5)
    assert task.said == (("keras", "patched"),)
    assert task.exit is None


def test_an_agent_that_says_less_is_understood() -> None:
    (task,) = told({"task": "worker:1", "generation": 1, "phase": "unknown"}, host={}).tasks
    assert (task.task, task.pid, task.port, task.progress, task.exit) == (W1, None, None, Progress(), None)
    assert wire.host_reported("a", "r", {"runs": {}}, at=1.0) == HostReported(1.0, "a", ())


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({}, Cause.SCRIPT),
        ({"cause": "oom"}, Cause.OOM),
        ({"cause": "signal", "code": None, "signal": 9}, Cause.SIGNAL),
        ({"cause": "shim-died"}, Cause.SHIM),
        ({"cause": "rebooted"}, Cause.REBOOTED),
        ({"cause": "lost"}, Cause.HOST_LOST),
        ({"cause": "start-failed"}, Cause.START),
        ({"cause": "of another version"}, Cause.SCRIPT),
        ({"ordered": True, "code": 143}, Cause.ORDERED),
        ({"ordered": True, "code": None, "signal": 9, "cause": "signal"}, Cause.ORDERED),
        ({"ordered": True, "code": 0}, Cause.SCRIPT),  # a chief that was done is done
    ],
)
def test_the_cause_of_an_end(changes: dict[str, Any], cause: Cause) -> None:
    (task,) = told({**TASK, "phase": "exited", "exit": {**EXIT, **changes}}).tasks
    assert task.exit is not None
    assert task.exit.cause is cause


def test_an_end_is_read_whole_and_its_time_is_the_hosts() -> None:
    error = {"kind": "exception", "message": "ValueError: bad"}
    (task,) = told({**TASK, "phase": "exited", "error": error, "exit": EXIT}).tasks
    assert task.exit is not None
    assert (task.exit.at, task.exit.ended_time, task.exit.code) == (97.5, 1.7e9, 1)
    assert (task.exit.error, task.exit.last_lines) == ("ValueError: bad", ("a", "b"))
    assert (task.exit.peak_rss_bytes, task.exit.swept, task.exit.left) == (9, "cgroup", ("pid 5: D state",))


def test_after_a_reboot_nobody_knows_how_long_ago() -> None:
    bare = {"code": None, "signal": None, "ago_s": None, "cause": "rebooted"}
    (task,) = told({**TASK, "phase": "exited", "exit": bare}).tasks
    assert task.exit is not None
    assert (task.exit.at, task.exit.last_lines, task.exit.left) == (100.0, (), ())


def test_numbers_that_the_journal_could_not_give_back_are_left_out() -> None:
    metrics = json.loads('{"loss": 1e999, "other": -1e999, "good": 2}')
    (task,) = told({**TASK, "metrics": metrics}).tasks
    assert task.progress.metrics == {"good": 2.0}


@pytest.mark.parametrize(
    "broken",
    [
        {**TASK, "task": "wroker:0"},
        {**TASK, "task": 5},
        {**TASK, "generation": "two"},
        {**TASK, "generation": None},
        {**TASK, "phase": "dancing"},
        {"task": "worker:0"},
        {**TASK, "metrics": {"loss": "high"}},
        {**TASK, "metrics": [1]},
        {**TASK, "exit": {"code": 1}},
        {**TASK, "exit": {**EXIT, "left": [{}]}},
        {**TASK, "said": [{}]},
        "worker:0",
    ],
)
def test_what_is_in_no_contract_names_the_host(broken: Any) -> None:
    with pytest.raises(wire.WireError, match="the agent on a sent a report that cannot be read"):
        told(broken)


def test_answers() -> None:
    rejected = [{"path": "ckpt-9", "why": "torn"}]
    seed = {"global_step": 5, "source": "ckpt-5", "path": "gen-000002", "rejected": rejected}
    assert wire.seeded(seed, 2) == Seed(2, 5, "ckpt-5", "gen-000002", (("ckpt-9", "torn"),))
    swept = {"left": [{"pid": 5, "why": "D state"}], "ports_busy": [20000], "by": "marker"}
    assert wire.swept(swept) == Swept(("pid 5: D state",), (20000,), "marker")
    assert wire.problem({"code": "gone", "message": "it ended", "hint": None}) == Problem("gone", "it ended")


def a_run(*, checkpoint: bool = True, runtime: bool = True) -> Run:
    plan: Plan = replace(
        make_plan(["a", "b"], checkpoint=checkpoint),
        tasks=(TaskPlan(W0, "a", gpus=(1, 3)), TaskPlan(W1, "b")),
        args=("--epochs", "3"),
        env={"MINE": "x"},
        secrets=("TOKEN", "ABSENT"),
        runtime=runtime,
    )
    run = new_run("t-1", plan, epoch=1, at=0.0)
    run = run.with_host(replace(run.hosts[0], facts=Facts(code="c0de")))
    return replace(run, generation=3, budget=Budget(restarts=2))


def test_a_start_order_says_all_that_the_host_needs_and_no_other_secret() -> None:
    order = wire.start_order(a_run(), StartTask("a", W0, 3), {"TOKEN": "hunter2", "ELSE": "x"})
    env = order.pop("env")
    ports = order.pop("ports")
    assert order == {
        "order": "start",
        "generation": 3,
        "task": "worker:0",
        "python": "python3",
        "script": "train.py",
        "args": ["--epochs", "3"],
        "secrets": {"TOKEN": "hunter2"},
        "code": "c0de",
        "hold": True,
        "log_max_bytes": wire.LOG_BYTES_MAX,
        "scratch": False,
    }
    assert env["CUDA_VISIBLE_DEVICES"] == "1,3"
    assert env["ORCH_CHECKPOINT_DIR"] == "/shared/t/gen-000003"
    assert (env["ORCH_RESTARTS"], env["ORCH_GENERATION"], env["MINE"]) == ("2", "3", "x")
    assert all(20000 <= port <= 20999 for port in ports)


def test_who_is_not_the_chief_has_its_own_copy_of_the_checkpoint() -> None:
    run = replace(a_run(), seed=Seed(3, 5, "ckpt-5", "/shared/t/gen-000003"))
    assert wire.start_order(run, StartTask("b", W1, 3), {})["scratch"] is True
    addresses = {W0: "10.0.0.1:20001", W1: "10.0.0.2:20001"}
    assert wire.release_order(run, ReleaseTask("b", W1, 3, addresses))["seed"] == "/shared/t/gen-000003"
    assert wire.release_order(run, ReleaseTask("a", W0, 3, addresses))["seed"] is None


def test_a_port_that_peers_know_is_kept_and_a_plain_script_is_not_held() -> None:
    order = wire.start_order(a_run(runtime=False, checkpoint=False), StartTask("a", W0, 4, port=20007), {})
    assert (order["ports"], order["hold"], order["scratch"]) == ([20007], False, False)
    assert "ORCH_CHECKPOINT_DIR" not in order["env"]


def test_a_release_gives_each_task_its_place_in_the_cluster() -> None:
    addresses = {W0: "10.0.0.1:20001", W1: "10.0.0.2:20002"}
    order = wire.release_order(a_run(checkpoint=False), ReleaseTask("b", W1, 3, addresses))
    assert json.loads(order["env"]["TF_CONFIG"]) == {
        "cluster": {"worker": ["10.0.0.1:20001", "10.0.0.2:20002"]},
        "task": {"type": "worker", "index": 1},
    }
    assert (order["order"], order["generation"], order["task"], order["seed"]) == (
        "release",
        3,
        "worker:1",
        None,
    )
