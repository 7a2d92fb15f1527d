"""The examples are read by people first; here they are loaded and planned, every one of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.core.launching.environment import environment, port_candidates, wiring
from orchestrator.core.launching.wiring import slots
from orchestrator.spec.models import json_schema
from orchestrator.spec.plan import load_plan

FOLDER = Path(__file__).parents[2] / "cluster_specs"
SPECS = sorted(FOLDER.glob("*.yaml"))


def test_the_examples_are_here() -> None:
    assert {"local.yaml", "two_hosts.yaml", "multi_worker_gpu.yaml"} <= {file.name for file in SPECS}


@pytest.mark.parametrize("file", SPECS, ids=lambda file: str(file.name))
def test_an_example_loads_plans_and_could_be_launched(file: Path) -> None:
    plan, secrets = load_plan(file)
    assert secrets == {}
    ports = {task.id: port_candidates(plan, "x-20260101-1", 1, task.id)[0] for task in plan.tasks}
    addresses = {task: f"host:{port}" for task, port in ports.items()}
    for task in plan.tasks:
        told = wiring(plan, addresses, task.id)
        if "TF_CONFIG" in told:
            assert json.loads(told["TF_CONFIG"])["task"] == {"type": task.id.type, "index": task.id.index}
        else:
            assert told.get("ORCH_RANK", "0") == str(task.id.index)
        assert "CUDA_VISIBLE_DEVICES" in environment(plan, "x-20260101-1", 1, task.id, 0, None, "/logs")


def test_four_machines_with_four_gpus_are_sixteen_horovod_ranks_machine_by_machine() -> None:
    plan, _ = load_plan(FOLDER / "horovod_4x4.yaml")
    found = list(slots(plan).items())
    assert [slot.rank for _, slot in found] == list(range(16))
    for task, slot in found:
        assert (slot.local_size, slot.cross_size, slot.size) == (4, 4, 16)
        assert (slot.cross_rank, slot.local_rank) == divmod(slot.rank, 4)
        assert plan.task(task).host == f"server{slot.cross_rank + 1}"
        assert plan.task(task).gpus == (slot.local_rank,), "its GPU is the one of its local rank"
        assert environment(plan, "x-1", 1, task, 0, None)["CUDA_VISIBLE_DEVICES"] == "0,1,2,3"


def test_each_example_stands_in_the_list_of_what_it_teaches() -> None:
    listed = (FOLDER / "README.md").read_text()
    assert [file.name for file in SPECS if f"| `{file.name}` |" not in listed] == []


@pytest.mark.parametrize("file", SPECS, ids=lambda file: str(file.name))
def test_an_example_tells_editors_its_schema(file: Path) -> None:
    assert file.read_text().splitlines()[0] == "# yaml-language-server: $schema=schema.json"


def test_the_schema_beside_the_examples_is_that_of_the_code() -> None:
    """If it is not: `orch schema > cluster_specs/schema.json`."""
    assert json.loads((FOLDER / "schema.json").read_text()) == json_schema()
