"""What agents say becomes events. What is not in the protocol never gets here: see tests of the edge."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from orchestrator.core import faults
from orchestrator.core.causes import REPORTED, Cause
from orchestrator.core.events import HostReported
from orchestrator.core.plan import TASK_TYPES, TaskId
from orchestrator.core.state.checkpoint import Seed
from orchestrator.core.state.host import Leaving
from orchestrator.core.state.phase_states import Swept
from orchestrator.core.state.run import Problem
from orchestrator.core.state.task import Progress
from orchestrator.head.links import wire
from orchestrator.protocol.check import check_of
from orchestrator.protocol.hello import Greeting, Hello
from orchestrator.protocol.measures import TaskMeasures
from orchestrator.protocol.orders.base import FaultKind
from orchestrator.protocol.orders.checkpoints import Rejected, Seeded
from orchestrator.protocol.reports import ExitCause, HostSample, Left, Report, Said, Task, TaskExit
from tests.protocol_values import valid

W0, W1 = TaskId("worker", 0), TaskId("worker", 1)
HELLO: Greeting = valid(Hello)
TASK: Task = {
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
MEASURED: TaskMeasures = {
    "steps_per_s": 3.5,
    "cpu_percent": 99.0,
    "rss_bytes": 1 << 30,
    "log_bytes": 77,
    "log_dropped_bytes": 5,
}
EXIT: TaskExit = {
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


def told(task: Task) -> HostReported:
    return reported([task])


def reported(tasks: list[Task]) -> HostReported:
    host: HostSample = {
        "cpu_percent": 5.0,
        "memory_percent": 50.0,
        "disk_free_bytes": None,
        "psutil": "host",
        "checkpoint_dirs": {"r": {"silent_s": 7.5, "free_bytes": 9}},
        "unkillable": [{"run": "old-1", "pid": 7, "command": "python3", "since": 1.8e9, "why": "D state"}],
        "leaving": {"why": "w" * 1000, "in_s": 30.0},
    }
    report: Report = {"host": host, "runs": {"r": tasks, "other": []}}
    assert check_of(Report)(report) == report, "it is one that the edge lets pass"
    return wire.host_reported("a", "r", report, at=100.0, unix_time=1.7e9 + 2.5, known={W0, W1})


def test_a_report_has_only_tasks_of_the_run_each_once_and_few_old_ones() -> None:
    said: list[Said] = [{"kind": "said", "message": "x"}]
    old: list[Task] = [{**TASK, "generation": number, "said": said} for number in range(40)]
    others: list[Task] = [{**TASK, "task": f"worker:{number}"} for number in range(2, 60)]
    event = reported([*old, *old, *others])
    assert [(told.task, told.generation) for told in event.tasks] == [(W0, n) for n in range(29, 40)]
    assert [bool(told.said) for told in event.tasks] == [False] * 8 + [True] * 3


def test_of_many_left_processes_and_rejected_checkpoints_the_first_are_named() -> None:
    left: list[Left] = [{"pid": number, "why": "x" * 5000} for number in range(1, 101)]
    swept = wire.swept({"left": left, "ports_busy": [], "by": "marker"})
    assert swept.left[0] == f"pid 1: {'x' * 500}"
    assert swept.left[-1] == "and 68 more"
    assert len(swept.left) == 33
    rejected: list[Rejected] = [{"path": f"ckpt-{number}", "why": "y" * 5000} for number in range(100)]
    seen = wire.verified({"checkpoint": None, "rejected": rejected}, 1, at=1.0, began_at=0.0)
    assert len(seen.rejected) == 32
    assert seen.rejected[0] == ("ckpt-0", "y" * 500)


def test_what_is_slow_on_the_way_to_a_host() -> None:
    assert wire.slowness(HELLO) is None
    assert wire.slowness({**HELLO, "slow": {"connect_s": 15.2}}) == "a connection took 15 s"
    assert wire.slowness({**HELLO, "slow": {"connect_s": 6.0, "shell_s": 2.5}}) == (
        "a connection took 6 s; the rc files of its login shell took 2.5 s"
    )


def test_a_report_is_read_whole() -> None:
    event = told(TASK)
    assert (event.at, event.host) == (100.0, "a")
    assert event.measured == {"cpu_percent": 5.0, "memory_percent": 50.0, "psutil": "host"}
    assert (event.dir_silent_s, event.dir_free_bytes) == (7.5, 9)
    assert event.leaving == Leaving("w" * 200, 30.0)
    (task,) = event.tasks
    assert (task.task, task.generation, task.phase, task.pid, task.port) == (W0, 2, "running", 4242, 20001)
    assert task.progress == Progress(120, 3, {"loss": 0.5}, MEASURED, 0.4, 0.25, 1.5)
    assert task.said == (("keras", "patched"),)
    assert task.exit is None


def test_a_shim_that_says_less_is_understood() -> None:
    (task,) = told({"task": "worker:1", "generation": 1, "phase": "unknown"}).tasks
    assert (task.task, task.pid, task.port, task.progress, task.exit) == (W1, None, None, Progress(), None)


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
        ({"ordered": True, "code": 143}, Cause.ORDERED),
        ({"ordered": True, "code": None, "signal": 9, "cause": "signal"}, Cause.ORDERED),
        ({"ordered": True, "code": 0}, Cause.SCRIPT),  # a chief that was done is done
    ],
)
def test_the_cause_of_an_end(changes: dict[str, Any], cause: Cause) -> None:
    (task,) = told({**TASK, "phase": "exited", "exit": {**EXIT, **changes}}).tasks  # type: ignore[typeddict-item]
    assert task.exit is not None
    assert task.exit.cause is cause


def test_an_end_is_read_whole_and_its_time_is_the_hosts_where_clocks_agree() -> None:
    whole: Task = {**TASK, "phase": "exited", "exit": EXIT}
    whole["error"] = {"kind": "exception", "message": "ValueError: bad"}
    (task,) = told(whole).tasks
    assert task.exit is not None
    assert (task.exit.at, task.exit.ended_time, task.exit.code) == (97.5, 1.7e9, 1)
    assert (task.exit.error, task.exit.last_lines) == ("ValueError: bad", ("a", "b"))
    assert task.exit.error_kind == "exception"
    assert (task.exit.peak_rss_bytes, task.exit.swept, task.exit.left) == (9, "cgroup", ("pid 5: D state",))


@pytest.mark.parametrize(
    ("ended_at", "known"),
    [(1.7e9 - 50, 1.7e9 - 50), (1.7e9 + 3 * 3600, 1.7e9), (1.7e9 - 3 * 3600, 1.7e9)],
)
def test_an_end_on_a_host_whose_clock_is_hours_off_has_the_heads_time(ended_at: float, known: float) -> None:
    (task,) = told({**TASK, "phase": "exited", "exit": {**EXIT, "ended_at": ended_at}}).tasks
    assert task.exit is not None
    assert (task.exit.at, task.exit.ended_time) == (97.5, known)


@pytest.mark.fault(96)
def test_an_end_and_a_process_that_stays_have_the_heads_time_where_the_hosts_clock_was_measured() -> None:
    ended: Task = {**TASK, "phase": "exited", "exit": {**EXIT, "ended_at": 1.7e9 + 3600 - 4}}
    task = wire.task_report(ended, at=100.0, unix_time=1.7e9, ahead_s=3600.0)
    assert task.exit is not None
    assert task.exit.ended_time == 1.7e9 - 4
    (stuck,) = wire.unkillable(
        [{"pid": 5, "run": "t-1", "since": 1.7e9 + 3600, "command": "", "why": "it is there"}], ahead_s=3600.0
    )
    assert "since 2023-11-14 22:13:20 UTC" in stuck.sentence


def test_after_a_reboot_nobody_knows_how_long_ago() -> None:
    bare: TaskExit = {"code": None, "signal": None, "ago_s": None, "cause": "rebooted"}
    (task,) = told({**TASK, "phase": "exited", "exit": bare}).tasks
    assert task.exit is not None
    assert (task.exit.at, task.exit.last_lines, task.exit.left) == (100.0, (), ())


def test_the_words_of_the_protocol_are_those_of_the_core() -> None:
    assert set(REPORTED) == set(get_args(ExitCause))
    assert set(get_args(FaultKind)) == set(faults.KINDS) - {"cut"}, "the head cuts its own connections"
    for type_ in TASK_TYPES:
        assert check_of(Task)({**TASK, "task": f"{type_}:0"})["task"] == f"{type_}:0"


def test_answers() -> None:
    seed: Seeded = {
        "global_step": 5,
        "source": "ckpt-5",
        "path": "gen-000002",
        "rejected": [{"path": "ckpt-9", "why": "torn"}],
    }
    assert wire.seeded(seed, 2) == Seed(2, 5, "ckpt-5", "gen-000002", (("ckpt-9", "torn"),))
    for verified in (True, None):  # None: there was nothing to verify
        assert wire.seeded({**seed, "verified": verified}, 2).verified is True
    assert wire.seeded({**seed, "verified": False}, 2).verified is False
    assert wire.swept(
        {"left": [{"pid": 5, "why": "D state"}], "ports_busy": [20000], "by": "marker"}
    ) == Swept(("pid 5: D state",), (20000,), "marker")
    assert wire.problem({"code": "gone", "message": "it ended", "hint": None}) == Problem("gone", "it ended")
