"""A spec with another number of replicas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.errors import SpecError
from orchestrator.core.plan import Plan
from orchestrator.spec.models import ClusterSpec
from orchestrator.spec.plan import plan_spec
from orchestrator.spec.sized import sized, sizes_of


def planned(replicas: int, hosts: list[dict[str, Any]], **run: Any) -> Plan:
    document = {"version": 1, "name": "t", "hosts": hosts, "run": {"script": "t.py", **run}}
    spec = ClusterSpec.model_validate(document)
    return plan_spec(sized(spec, plan_spec(spec, Path("/")), replicas), Path("/"))


def tasks(plan: Plan) -> dict[str, int]:
    return {str(task.id): len(task.gpus) for task in plan.tasks}


GPU_HOSTS = [{"name": "a", "gpus": 4}, {"name": "b", "gpus": 4}]


@pytest.mark.parametrize(
    ("replicas", "expected"),
    [(1, {"worker:0": 1}), (4, {"worker:0": 4}), (8, {"worker:0": 4, "worker:1": 4})],
)
def test_gpus_are_filled_task_by_task(replicas: int, expected: dict[str, int]) -> None:
    plan = planned(replicas, GPU_HOSTS, strategy="multi_worker_mirrored", tasks={"worker": {"replicas": 2}})
    assert tasks(plan) == expected


def test_hosts_that_are_split_hold_several_tasks_at_each_size() -> None:
    run = {"strategy": "multi_worker_mirrored", "tasks": {"worker": {"gpus": "split"}}}
    hosts = [{"name": "a", "gpus": 8}, {"name": "b", "gpus": 4}]
    assert tasks(planned(4, hosts, **run)) == {"worker:0": 4}
    assert tasks(planned(12, hosts, **run)) == {"worker:0": 4, "worker:1": 4, "worker:2": 4}


def test_a_number_that_no_tasks_have_is_refused_with_those_that_they_do() -> None:
    with pytest.raises(SpecError, match="6 replicas cannot be cut into tasks of 4") as refused:
        planned(6, GPU_HOSTS, strategy="multi_worker_mirrored", tasks={"worker": {"replicas": 2}})
    assert refused.value.hint == "give --replicas multiples of 4, or numbers below it"


def test_a_chief_counts_and_an_evaluator_is_left_out() -> None:
    hosts = [{"name": name} for name in "abcd"]
    asked = {"chief": {}, "worker": {"replicas": 2}, "evaluator": {}}
    run = {"strategy": "multi_worker_mirrored", "tasks": asked}
    assert set(tasks(planned(1, hosts, **run))) == {"chief:0"}
    assert set(tasks(planned(3, hosts, **run))) == {"chief:0", "worker:0", "worker:1"}


def test_one_task_gets_gpus_or_logical_cpus() -> None:
    assert tasks(planned(2, GPU_HOSTS, strategy="mirrored")) == {"worker:0": 2}
    on_cpu = planned(3, [{"name": "a"}], strategy="mirrored")
    assert on_cpu.options.replicas_on_cpu == 3
    several = planned(
        4,
        [{"name": "a"}, {"name": "b"}],
        strategy="multi_worker_mirrored",
        tasks={"worker": {"replicas": 2}},
        replicas_on_cpu=2,
    )
    assert len(several.tasks) == 2
    assert several.options.replicas_on_cpu == 2


def test_sizes_are_read_in_order_and_once() -> None:
    assert sizes_of("4,1,2,1") == [1, 2, 4]
    for wrong in ("", "two", "0,1", "1,5000"):
        with pytest.raises(ValueError, match="size"):
            sizes_of(wrong)
