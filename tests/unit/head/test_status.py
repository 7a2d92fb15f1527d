"""The document of `orch status --json`: the keys that others rely on, and that it is JSON whatever the state is."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.core.causes import Cause
from orchestrator.core.diagnosis import cause
from orchestrator.core.downtime import Cost
from orchestrator.core.ends import Exit, FirstCause
from orchestrator.core.plan import TaskId
from orchestrator.core.saving import Saving
from orchestrator.core.state.checkpoint import Checkpoint, Seed
from orchestrator.core.state.host import Facts, HostState, Link
from orchestrator.core.state.phase_states import Ended, Phase, Swept
from orchestrator.core.state.run import Problem, Run, new_run
from orchestrator.core.state.task import Progress, Standby, TaskPhase
from orchestrator.head.coordinator import status
from orchestrator.reporting.goodput import Account
from tests.contract.fake_api import first_cause_document
from tests.unit.core.phases import state_of
from tests.unit.core.transcript import make_plan

W0 = TaskId("worker", 0)
NOW = 1000.0


def a_run() -> Run:
    run = new_run("t-20260101-000000", make_plan(["a", "b"], checkpoint=True), epoch=2, at=900.0)
    run = run.with_host(
        replace(
            run.hosts[0], link=Link.CONNECTED, heard_at=999.5, facts=Facts(), measured={"cpu_percent": 7.0}
        )
    )
    run = run.with_host(replace(run.hosts[1], link=Link.UNREACHABLE, problem="b: no route", heard_at=950.0))
    progress = Progress(120, 3, {"loss": 0.5}, {"steps_per_s": 3.4}, heartbeat_age_s=0.3)
    return replace(
        run,
        phase_state=state_of(Phase.RUNNING, progress_at=999.0),
        generation=2,
        tasks=tuple(
            replace(
                task,
                phase=TaskPhase.RUNNING,
                generation=2,
                pid=4242,
                port=22221,
                heard_at=999.9,
                progress=progress,
            )
            for task in run.tasks
        ),
    )


def test_a_checkpoint_is_as_old_as_its_save_and_not_as_its_verification() -> None:
    known = Checkpoint(100, "gen-000002/ckpt", 2, verified_at=988.0, saved_time=time.time() - 287)
    for saved_at, age_s in ((known.saved_time, 287), (time.time() + 60, 0), (None, 12)):
        run = replace(a_run(), checkpoint=replace(known, saved_time=saved_at))
        (shown,) = status.document([run], now=NOW)["runs"]
        assert shown["checkpoint"]["age_s"] == pytest.approx(age_s, abs=5)


def test_the_contract_of_the_design() -> None:
    run = replace(a_run(), checkpoint=Checkpoint(100, "gen-000002/ckpt", 2, verified_at=988.0))
    document = json.loads(json.dumps(status.document([run], now=NOW)))
    assert document["schema"] == 1
    (shown,) = document["runs"]
    expected = {
        "name": "t",
        "run_id": "t-20260101-000000",
        "phase": "RUNNING",
        "reason": "step 120; b unreachable for 50 s; the other tasks make progress",
        "strategy": "multi_worker_mirrored",
        "generation": 2,
        "epoch": 2,
        "restarts": 0,
        "global_step": 120,
        "steps_per_s": 3.4,
    }
    assert {key: shown[key] for key in expected} == expected
    checkpoint = {"global_step": 100, "path": "gen-000002/ckpt", "verified": True, "age_s": 12.0}
    assert {key: shown["checkpoint"][key] for key in checkpoint} == checkpoint
    assert run.checkpoint is not None
    unread = replace(run, checkpoint=replace(run.checkpoint, verified=False))
    (again,) = status.document([unread], now=NOW)["runs"]
    assert again["checkpoint"]["verified"] is False
    task = {
        "task": "worker:0",
        "host": "a",
        "phase": "RUNNING",
        "pid": 4242,
        "generation": 2,
        "address": "10.0.0.1:22221",
        "global_step": 120,
        "exit_code": None,
        "heartbeat_age_s": 0.4,
    }
    assert {key: shown["tasks"][0][key] for key in task} == task
    assert shown["tasks"][1]["phase"] == "UNREACHABLE"
    assert [host["link"] for host in shown["hosts"]] == ["CONNECTED", "UNREACHABLE"]
    assert [host["heard_age_s"] for host in shown["hosts"]] == [0.5, 50.0]


def test_a_run_of_which_nothing_is_known_yet() -> None:
    run = new_run("t-1", make_plan(["a"], checkpoint=False), epoch=1, at=999.0)
    (shown,) = status.document([run], now=NOW)["runs"]
    for key in ("checkpoint", "seed", "problem", "first_cause", "proof", "global_step", "steps_per_s"):
        assert shown[key] is None, key
    (task,) = shown["tasks"]
    assert (task["phase"], task["address"], task["heartbeat_age_s"], task["cause"]) == (
        "WAITING",
        None,
        None,
        None,
    )
    assert shown["hosts"][0]["heard_age_s"] is None


def an_ended_run() -> Run:
    ended = Exit(cause=Cause.SIGNAL, signal=9, at=990.0, ended_time=1.7e9)
    run = a_run()
    run = run.with_task(replace(run.tasks[0], phase=TaskPhase.EXITED, exit=ended))
    run = run.with_task(replace(run.tasks[1], phase=TaskPhase.LOST, exit=replace(ended, code=3)))
    return replace(
        run,
        phase_state=state_of(Phase.FAILED, proof={"a": Swept(("pid 9: D state",), (20000,), "cgroup")}),
        reason="worker:0 on a was killed by SIGKILL",
        problem=Problem("failed", "it failed", "do that", 1),
        first_cause=FirstCause(None, 2, Cause.SIGNAL, "worker:0 died", ("last",), 1),
        seed=Seed(2, 90, "ckpt-90"),
        warnings=("careful",),
    )


def test_an_ended_run_says_why() -> None:
    run = an_ended_run()
    (shown,) = json.loads(json.dumps(status.document([run], now=NOW)))["runs"]
    assert shown["reason"] == "worker:0 on a was killed by SIGKILL"
    problem: dict[str, object] = {
        "code": "failed",
        "finding": None,
        "message": "it failed",
        "hint": "do that",
        "exit_code": 1,
        "key": None,
        "table": [],
    }
    assert shown["problem"] == problem
    assert shown["first_cause"] == {
        "task": None,
        "host": None,
        "generation": 2,
        "cause": "signal",
        "exit_code": None,
        "signal": None,
        "sentence": "worker:0 died",
        "global_step": None,
        "ended_time": None,
        "means": "",
        "advice": "",
        "done": "",
        "cost": "",
        "downtime": None,
        "last_lines": ["last"],
        "followers": 1,
        "followed": [],
        "alike": [],
        "stopped": 0,
    }
    assert status.first_cause(replace(run, first_cause=FirstCause(W0, 2, Cause.OOM, "x"))) == {
        **shown["first_cause"],
        "task": "worker:0",
        "cause": "out of memory",
        "sentence": "x",
        "last_lines": [],
        "followers": 0,
    }
    assert shown["seed"] == {"global_step": 90, "source": "ckpt-90"}
    assert (shown["warnings"], shown["hints"]) == (["careful"], [])


def test_an_ended_run_says_what_was_proven_of_its_hosts() -> None:
    run = an_ended_run()
    (shown,) = json.loads(json.dumps(status.document([run], now=NOW)))["runs"]
    assert shown["proof"] == {
        "hosts": {
            "a": {
                "left": ["pid 9: D state"],
                "ports_busy": [20000],
                "by": "cgroup",
                "how": "each task's control group, which holds every process that it has started",
            }
        },
        "gone": {},
        "unreachable": ["b"],
    }
    why = "gone for good, as the user said at 09:30"
    called_gone = run.with_host(replace(run.host("b"), gone="09:30", state_why=why))
    (shown_gone,) = status.document([called_gone], now=NOW)["runs"]
    assert (shown_gone["proof"]["gone"], shown_gone["proof"]["unreachable"]) == ({"b": why}, [])
    assert shown_gone["reason"] == f"worker:0 on a was killed by SIGKILL; b is {why}, and not checked"


def test_the_tasks_of_an_ended_run_keep_how_they_ended() -> None:
    (shown,) = json.loads(json.dumps(status.document([an_ended_run()], now=NOW)))["runs"]
    first, second = shown["tasks"]
    assert (first["phase"], first["signal"], first["exit_code"], first["cause"]) == (
        "EXITED",
        9,
        None,
        "signal",
    )
    assert first["heartbeat_age_s"] is None
    assert (second["phase"], second["exit_code"]) == ("LOST", 3)
    assert shown["steps_per_s"] is None, "nobody trains any more"


def test_the_fake_coordinator_tells_first_causes_as_the_real_one_does() -> None:
    real = cause.as_data(FirstCause(W0, 1, Cause.SIGNAL, "x"))
    assert list(first_cause_document()) == list(real)


@pytest.mark.parametrize("planned", [Cause.RESCHEDULED, Cause.HOST_LEAVES])
def test_a_planned_end_is_no_first_cause_and_hides_none(planned: Cause) -> None:
    """A drain, and the end of a run whose hosts are taken away while it waits after a real failure."""
    failed = {"generation": 1, "task": "worker:0", "cause": "signal", "finding": None}
    moved = {"generation": 2, "task": None, "cause": planned.value}
    sentence = "a leaves: the time limit is near"
    run = replace(
        a_run(), first_cause=FirstCause(None, 2, planned, sentence), reason=sentence, reason_rest=""
    )
    assert status.why_document(run, [failed, moved], now=NOW)["first_causes"] == [failed]
    (shown,) = status.document([run], now=NOW)["runs"]
    assert (shown["first_cause"], shown["planned_end"]) == (None, planned.value)
    ended = replace(run, phase_state=Ended(phase=Phase.KILLED))
    (shown,) = status.document([ended], now=NOW)["runs"]
    assert (shown["reason_begins_with"], shown["reason_rest"]) == (None, sentence)


def test_of_each_end_the_latest_word_counts_and_the_order_stays() -> None:
    one = {"generation": 1, "task": "worker:0", "done": "restart in 5.0 s"}
    two = {"generation": 2, "task": "worker:1", "done": "given up"}
    later = {**one, "done": "generation 2 resumes from step 10"}
    found = status.why_document(a_run(), [one, later, two], now=NOW)
    assert found["first_causes"] == [{**one, "finding": None} for one in (later, two)]
    run = replace(a_run(), first_cause=FirstCause(W0, 3, Cause.OOM, "x"))
    assert [c["generation"] for c in status.why_document(run, [later, two], now=NOW)["first_causes"]] == [
        1,
        2,
        3,
    ]


@pytest.mark.parametrize(
    ("changes", "holds", "state"),
    [
        ({}, True, "ready"),
        ({}, False, "spare"),
        ({"facts": None}, False, "preparing"),
        ({"facts": None, "dir_missing": True}, True, "preparing"),
        ({"dir_missing": True}, True, "unmounted"),
        ({"dir_missing": True, "link": Link.UNREACHABLE}, True, "unreachable"),
        ({"link": Link.UNREACHABLE}, False, "unreachable"),
        ({"link": Link.CONNECTING}, True, "connecting"),
        ({"state": HostState.LOST, "link": Link.UNREACHABLE}, True, "lost"),
        ({"state": HostState.DRAINED}, True, "drained"),
        ({"state": HostState.QUARANTINED}, False, "quarantined"),
    ],
)
def test_how_a_host_stands(changes: dict[str, Any], holds: bool, state: str) -> None:
    run = a_run()
    run = run.with_host(replace(run.hosts[0], **changes))
    if not holds:
        run = run.with_task(replace(run.tasks[0], host="b"))
    shown = status.run_document(run, now=NOW)["hosts"][0]
    assert (shown["state"], shown["tasks"]) == (state, ["worker:0"] if holds else [])
    unmounted = "/shared/t on a is not the directory in which the run saves: its share is not mounted"
    assert shown["reason"] == (unmounted if state == "unmounted" else None)


def test_the_pace_is_not_known_while_the_host_of_the_chief_is_not_heard() -> None:
    """Another coordinator is connecting at first: what it took up was measured by the one before."""
    run = a_run()
    for task in run.tasks:
        run = run.with_task(replace(task, progress=replace(task.progress, steps_total=460)))
    told = []
    for link in (Link.CONNECTED, Link.UNREACHABLE, Link.CONNECTING):
        (shown,) = status.document([run.with_host(replace(run.hosts[0], link=link))], now=NOW)["runs"]
        told.append((shown["steps_per_s"], shown["eta_s"], shown["global_step"]))
    assert told == [(3.4, 100.0, 120), (None, None, 120), (None, None, 120)]


def test_the_standby_of_a_run() -> None:
    off = status.run_document(a_run(), now=NOW)["standby"]
    assert (off["state"], off["generation"], off["tasks"]) == ("off", None, [])
    run = a_run()
    run = replace(run, plan=replace(run.plan, restart=replace(run.plan.restart, standby="on")))
    none = status.run_document(run, now=NOW)["standby"]
    assert (none["state"], none["reason"]) == ("none", "b is not connected")
    waiting = tuple(
        replace(
            task, generation=3, phase=TaskPhase.READY, progress=Progress(measured={"rss_bytes": 300 << 20})
        )
        for task in run.tasks
    )
    standby = Standby(generation=3, tasks=waiting, since_at=NOW - 20.0, join_at=NOW + 1.0)
    states = [standby, replace(standby, join_at=None), replace(standby, ended="the run ends")]
    told = [status.run_document(replace(run, standby=one), now=NOW)["standby"] for one in states]
    assert [one["state"] for one in told] == ["starting", "ready", "ending"]
    assert (told[1]["generation"], told[1]["age_s"], told[1]["memory_bytes"]) == (3, 20.0, 600 << 20)
    assert told[1]["tasks"][1] == {"task": "worker:1", "host": "b", "phase": "READY", "pid": 4242}


def test_how_often_a_run_saves_and_what_a_failure_cost() -> None:
    run = a_run()
    assert status.run_document(run, now=NOW)["saving"] is None
    chief = run.task(run.chief)
    saving = Saving(240, 302400.0, "least", 55.0, 0.005, 0.02, saved_step=480)
    cost = Cost(0.5, 0.4, 0.1, 4.0, 1.0, 2.0, 20, 10.0)
    found = FirstCause(run.chief, 1, Cause.SIGNAL, "it was killed", cost=cost.sentence())
    run = replace(
        run.with_task(replace(chief, progress=Progress(saving=saving))), first_cause=found, cost=cost
    )
    shown = json.loads(json.dumps(status.run_document(run, now=NOW)))
    assert shown["saving"] == {
        "every_steps": 240,
        "every_s": 55.0,
        "cost_s": 0.005,
        "spent_s": 0.02,
        "saved_step": 480,
        "failure_s": 302400.0,
        "why": "least",
        "sentence": saving.sentence(),
    }
    told = shown["first_cause"]["downtime"]
    parts = ("detected", "decided", "started", "restored", "first_step")
    assert told["total_s"] == sum(told[f"{part}_s"] for part in parts)
    assert told["training_s"] == told["total_s"] + told["lost_s"]
    why = status.why_document(run, [], now=NOW)
    assert why["saving"] == shown["saving"]
    assert why["first_causes"][0]["downtime"] == told
    assert status.first_cause(replace(run, first_cause=replace(found, cost="")))["downtime"] is None  # type: ignore[index]


def test_a_stage_is_told_of_tasks_that_are_heard_and_goodput_once_a_step_was_made() -> None:
    """Keras tells at which step its training begins: that is no step."""
    account = Account(900.0, 1000.0, False, 0.9, 90.0, {}, (), ())
    before = replace(a_run(), seed=Seed(2, 120, "gen-000001/ckpt"), best_step=120)
    for task in before.tasks:
        progress = Progress(120, began_step=120, stage="compiling", unreached=((W0, "silent"),))
        before = before.with_task(replace(task, progress=progress))
    stepped = before.with_task(
        replace(before.tasks[0], progress=Progress(121, began_step=120, stage="training"))
    )
    again = replace(before, best_step=170)
    told = {}
    for name, run in (("before", before), ("stepped", stepped), ("again", again)):
        (shown,) = status.document([run], now=NOW, times={run.run_id: account})["runs"]
        told[name] = shown["has_stepped"], shown["goodput"], [task["stage"] for task in shown["tasks"]]
    assert told["before"] == (False, None, ["compiling", None]), "the host of the other is not heard"
    assert told["stepped"] == (True, 0.9, ["training", None])
    assert told["again"] == (False, 0.9, ["compiling", None]), "an earlier generation went on to step 170"
    assert shown["tasks"][0]["unreached"] == [{"task": "worker:0", "finding": "silent"}]
