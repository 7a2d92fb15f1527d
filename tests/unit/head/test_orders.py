"""What is decided becomes orders."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.core import gang
from orchestrator.core.actions import ReleaseTask, SeedCheckpoint, StartTask, SweepHost, VerifyCheckpoint
from orchestrator.core.causes import Cause
from orchestrator.core.ends import Exit
from orchestrator.core.faults import Fault
from orchestrator.core.plan import HostPlan, Plan, TaskId, TaskPlan
from orchestrator.core.saving import Restored, Saving
from orchestrator.core.state.budget import Budget
from orchestrator.core.state.checkpoint import Seed
from orchestrator.core.state.host import Facts
from orchestrator.core.state.phase_states import Intent, Phase
from orchestrator.core.state.run import Run, new_run
from orchestrator.core.state.task import TaskPhase
from orchestrator.head.links import requests as orders
from tests.unit.core.phases import in_phase
from tests.unit.core.transcript import make_plan

W0, W1 = TaskId("worker", 0), TaskId("worker", 1)


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
    order = dict(orders.start(a_run(), StartTask("a", W0, 3), {"TOKEN": "hunter2", "ELSE": "x"}).fields)
    env = order.pop("env")
    ports = order.pop("ports")
    assert order == {
        "order": "start",
        "fence": "begins",
        "run": "t-1",
        "epoch": 1,
        "generation": 3,
        "task": "worker:0",
        "python": "python3",
        "script": "train.py",
        "args": ["--epochs", "3"],
        "secrets": {"TOKEN": "hunter2"},
        "code": "c0de",
        "hold": True,
        "log_max_bytes": orders.LOG_BYTES_MAX,
        "scratch": False,
    }
    assert env["CUDA_VISIBLE_DEVICES"] == "1,3"
    assert env["ORCH_CHECKPOINT_DIR"] == "/shared/t/gen-000003"
    assert (env["ORCH_RESTARTS"], env["ORCH_GENERATION"], env["MINE"]) == ("2", "3", "x")
    assert all(20000 <= port <= 20999 for port in ports)


def test_a_standby_is_started_for_its_own_generation_and_told_of_restarts_with_its_release() -> None:
    run = a_run()
    early = orders.start(run, StartTask("a", W0, 7, standby=True), {}).fields["env"]
    assert (early["ORCH_CHECKPOINT_DIR"], early["ORCH_GENERATION"]) == ("/shared/t/gen-000007", "7")
    assert early["ORCH_STANDBY"] == "1"
    assert "ORCH_STANDBY" not in orders.start(run, StartTask("a", W0, 7), {}).fields["env"]
    addresses = {W0: "10.0.0.1:20001", W1: "10.0.0.2:20001"}
    assert orders.release(run, ReleaseTask("a", W0, 7, addresses)).fields["env"]["ORCH_RESTARTS"] == "2"
    seen = replace(run, trained_s=3600.0, failures=4)
    every_s = [
        orders.release(each, ReleaseTask("a", W0, 7, addresses)).fields["env"]["ORCH_FAILURE_EVERY_S"]
        for each in (run, seen, replace(seen, rescued=3))
    ]
    assert every_s == [
        "302400",
        f"{(0.1 * 302400 + 3600) / 4.1:.0f}",
        f"{(0.1 * 604800 + 3600) / 1.1:.0f}",
    ]


def test_an_evaluator_of_the_standby_that_is_released_beside_the_gang_watches_what_the_gang_writes() -> None:
    seen = TaskId("evaluator", 0)
    run = a_run()
    plan = replace(run.plan, tasks=(*run.plan.tasks, TaskPlan(seen, "b")))
    run = replace(new_run("t-1", plan, epoch=1, at=0.0), generation=3)
    early = orders.start(run, StartTask("b", seen, 7, standby=True), {}).fields["env"]
    assert early["ORCH_CHECKPOINT_DIR"] == "/shared/t/gen-000007"
    addresses = {W0: "10.0.0.1:20001", W1: "10.0.0.2:20001", seen: "10.0.0.2:20002"}
    told = orders.release(run, ReleaseTask("b", seen, 7, addresses)).fields["env"]
    assert told["ORCH_CHECKPOINT_DIR"] == "/shared/t/gen-000003"
    assert "ORCH_CHECKPOINT_DIR" not in orders.release(run, ReleaseTask("b", W1, 7, addresses)).fields["env"]


def test_who_is_not_the_chief_has_its_own_copy_of_the_checkpoint() -> None:
    run = replace(a_run(), seed=Seed(3, 5, "ckpt-5", "/shared/t/gen-000003"))
    assert orders.start(run, StartTask("b", W1, 3), {}).fields["scratch"] is True
    addresses = {W0: "10.0.0.1:20001", W1: "10.0.0.2:20001"}
    assert orders.release(run, ReleaseTask("b", W1, 3, addresses)).fields["seed"] == "/shared/t/gen-000003"
    assert "seed" not in orders.release(run, ReleaseTask("a", W0, 3, addresses)).fields


def test_a_port_that_peers_know_is_kept_and_a_plain_script_is_not_held() -> None:
    run = a_run(runtime=False, checkpoint=False)
    order = orders.start(run, StartTask("a", W0, 4, port=20007), {}).fields
    assert (order["ports"], order["hold"], order["scratch"]) == ([20007], False, False)
    assert "ORCH_CHECKPOINT_DIR" not in order["env"]


def test_a_release_gives_each_task_its_place_in_the_cluster() -> None:
    addresses = {W0: "10.0.0.1:20001", W1: "10.0.0.2:20002"}
    order = orders.release(a_run(checkpoint=False), ReleaseTask("b", W1, 3, addresses)).fields
    assert json.loads(order["env"]["TF_CONFIG"]) == {
        "cluster": {"worker": ["10.0.0.1:20001", "10.0.0.2:20002"]},
        "task": {"type": "worker", "index": 1},
    }
    assert (order["order"], order["generation"], order["task"], order.get("seed")) == (
        "release",
        3,
        "worker:1",
        None,
    )


def test_what_need_not_be_said_is_not_in_an_order() -> None:
    run = a_run()
    assert run.plan.checkpoint is not None
    seed = orders.seed(run, SeedCheckpoint("a", 3), run.plan.checkpoint)
    assert "only" not in seed.fields
    assert orders.seed(run, SeedCheckpoint("a", 3), run.plan.checkpoint, only="d1").fields["only"] == "d1"
    assert "store" not in orders.blob(run, "0" * 64, 0, last=True).fields
    assert orders.blob(run, "0" * 64, 0, last=True, chunk=True).fields["store"] == "checkpoints"
    fill = orders.fault(run, Fault("fill", "a", for_s=5.0)).fields
    assert (fill["fault"], fill["for_s"], "task" in fill) == ("fill", 5.0, False)
    assert orders.fault(run, Fault("kill", "a", W0, 3)).fields["task"] == "worker:0"


@pytest.mark.parametrize("intent", Intent)
def test_a_sweep_says_whether_the_run_ends(intent: Intent) -> None:
    found = {
        phase: "ends" in orders.sweep(in_phase(a_run(), phase, **own), SweepHost("a", 3)).fields
        for phase, own in ((Phase.RUNNING, {}), (Phase.STOPPING, {"intent": intent}), (Phase.KILLED, {}))
    }
    ends = intent not in (Intent.RESTART, Intent.RESCHEDULE)  # what waits in the queue again holds nothing
    assert found == {Phase.RUNNING: False, Phase.STOPPING: ends, Phase.KILLED: True}


def test_a_spare_that_holds_a_task_is_told_what_it_would_be_in_that_place() -> None:
    run = a_run()
    spare = HostPlan("s", address="s", data_address="10.0.1.1", gpus=(4, 5, 6, 7), spare=True)
    hosts = (replace(run.plan.hosts[0], gpus=(0, 1, 2, 3)), *run.plan.hosts[1:], spare)
    run = new_run("t-1", replace(run.plan, hosts=hosts), epoch=1, at=0.0)
    run = run.with_host(replace(run.host("s"), facts=Facts(code="beef")))
    started = orders.start(run, StartTask("s", W0, 7, standby=True), {}).fields
    env = started["env"]
    assert (env["ORCH_HOST"], env["CUDA_VISIBLE_DEVICES"], started["code"]) == ("s", "4,5", "beef")


def test_a_task_that_is_restarted_alone_is_released_with_the_port_that_its_peers_know() -> None:
    addresses = {W0: "10.0.0.1:20000", W1: "10.0.0.2:20016"}
    released = orders.release(a_run(), ReleaseTask("b", W1, 7, addresses, port=20016)).fields
    assert released["port"] == 20016
    assert "port" not in orders.release(a_run(), ReleaseTask("b", W1, 7, addresses)).fields


def test_a_seed_says_what_could_not_be_restored_and_which_step_can_have_been_reached() -> None:
    run = a_run()
    assert run.plan.checkpoint is not None
    known = orders.seed(run, SeedCheckpoint("a", 3), run.plan.checkpoint).fields
    assert "step_max" not in known
    assert "unrestorable" not in known
    failed = Restored("orch/fit-000/latest.weights.h5", 5.5, 9, None, "KeyError: x")
    run = replace(run, step_max=1750, unrestorable=(failed,))
    assert run.plan.checkpoint is not None
    told = orders.seed(run, SeedCheckpoint("a", 3), run.plan.checkpoint).fields
    assert told["step_max"] == 1750
    assert told["unrestorable"] == [
        {"file": failed.file, "step": None, "saved_at": 5.5, "bytes": 9, "why": "KeyError: x"}
    ]


def _at(run: Run, step: int | None, phase: TaskPhase, **more: Any) -> Run:
    for task in run.tasks:
        progress = replace(
            task.progress,
            global_step=step,
            measured={"steps_per_s": more["pace"]} if more.get("pace") else {},
            saving=more.get("saving"),
        )
        run = run.with_task(replace(task, phase=phase, progress=progress, exit=more.get("exit")))
    return replace(run, best_step=step)


@pytest.mark.parametrize(
    ("step", "phase", "more", "expected"),
    [
        (None, TaskPhase.RUNNING, {}, None),
        (750, TaskPhase.STARTING, {}, None),
        (750, TaskPhase.RUNNING, {}, 1750),
        (750, TaskPhase.RUNNING, {"pace": 100.0}, 60_750),
        (750, TaskPhase.EXITED, {"exit": Exit(Cause.SIGNAL)}, 1750),
        (750, TaskPhase.EXITED, {"exit": Exit(Cause.HOST_LOST)}, None),
        (750, TaskPhase.LOST, {"exit": Exit(Cause.HOST_LOST)}, None),
        (10, TaskPhase.RUNNING, {"saving": Saving(500, 60.0, "spec", saved_step=9000)}, 11_000),
    ],
)
def test_which_step_can_have_been_reached_is_known_of_what_was_heard_to_its_end(
    step: int | None, phase: TaskPhase, more: dict[str, Any], expected: int | None
) -> None:
    run = _at(a_run(), step, phase, **more)
    assert gang.step_max(run) == expected
    assert run.plan.checkpoint is not None
    order = orders.verify(run, VerifyCheckpoint("a", 3), run.plan.checkpoint)
    assert order.fields.get("step_max") == expected


def test_the_gpus_and_slots_to_lease_are_told_apart_by_their_names() -> None:
    """A UUID may have digits only, so that the rest of it would be read as a slot's number."""
    uuid = f"GPU-{'0123456789' * 4}"[:40]
    fields = orders.watch("t-1", 2, 1.0, gpus=[uuid, "slot-3"]).fields
    assert (fields["gpu_uuids"], fields["slots"], fields.get("gpus")) == ([uuid], [3], None)
    fields = orders.watch("t-1", 2, 1.0, gpus=[uuid]).fields
    assert (fields["gpu_uuids"], fields.get("slots")) == ([uuid], None)
    fields = orders.watch("t-1", 2, 1.0, gpus=[1, 0]).fields
    assert (fields["gpus"], fields.get("gpu_uuids"), fields.get("slots")) == ([1, 0], None, None)
