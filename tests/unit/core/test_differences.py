"""In what two plans differ, in the words of the spec."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.core.differences import differences, sentence
from orchestrator.core.plan import CheckpointPlan, HostPlan, Plan, QueuePlan, TaskId, TaskPlan, Timing

A, B = HostPlan("a", gpus=(0, 1), spec="/x/one.yaml"), HostPlan("b")
TASKS = (TaskPlan(TaskId("worker", 0), "a", (0,)), TaskPlan(TaskId("worker", 1), "b"))
PLAN = Plan("t", "mirrored", (A, B), TASKS, "train.py", args=("--lr", "0.1", "--epochs=3"), env={"X": "1"})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, ""),
        ({"hosts": (replace(A, spec="/y/two.yaml"), B)}, ""),
        ({"hosts": (replace(A, allocation="lent"), B)}, ""),
        ({"args": ("--lr", "0.01", "--epochs=3")}, "args --lr: 0.1 -> 0.01"),
        ({"args": ("--lr", "0.1", "--epochs=9")}, "args --epochs: 3 -> 9"),
        ({"args": ("--lr", "0.1", "--epochs=3", "-v")}, "args: -v is new"),
        ({"args": ("--epochs=3",)}, "args: --lr 0.1 is removed"),
        ({"env": {"X": "2", "Y": "3"}}, "env.X: 1 -> 2, env: Y is new"),
        ({"hosts": (replace(A, gpus=(0,)),)}, "hosts.a.gpus: 0, 1 -> 0, hosts: b is removed"),
        ({"tasks": TASKS[:1]}, "tasks.worker.replicas: 2 -> 1"),
        ({"tasks": (replace(TASKS[0], host="b"), TASKS[1])}, "tasks.worker:0.host: a -> b"),
        ({"timing": Timing(lost_after_s=90)}, "timing.lost_after: 1 min -> 1 min 30 s"),
        ({"checkpoint": CheckpointPlan("/c", every_s=60.0)}, "checkpoint: dir /c, every_s 60.0 is new"),
        ({"queue": QueuePlan()}, ""),
        ({"script": "b.py", "runtime": False}, "script: train.py -> b.py, runtime: True -> False"),
    ],
)
def test_what_has_changed_is_said_key_by_key(changes: dict[str, object], said: str) -> None:
    found = sentence(differences(PLAN, replace(PLAN, **changes)))  # type: ignore[arg-type]
    assert found == said


def test_that_a_run_waits_is_no_difference_of_what_it_does() -> None:
    assert differences(PLAN, replace(PLAN, queue=QueuePlan("high"))) == []
