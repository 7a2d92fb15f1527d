"""`slurm:` of a cluster spec: in place of hosts, or beside them."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.core.errors import SpecError
from orchestrator.spec.plan import load_plan, wish_of

RUN = "run: {strategy: multi_worker_mirrored, script: t.py, tasks: {worker: {replicas: 2, gpus: 4}}}\n"


def write(tmp_path: Path, machines: str) -> Path:
    (tmp_path / "t.py").write_text("")
    path = tmp_path / "c.yaml"
    path.write_text(f"version: 1\nname: t\n{machines}\n{RUN}")
    return path


def test_nodes_stand_in_place_of_hosts(tmp_path: Path) -> None:
    path = write(tmp_path, "slurm: {nodes: 2, spares: 1, gpus_per_node: 4, account: vision, requeue: true}")
    plan, _ = load_plan(path)
    assert [(host.name, host.gpus, host.spare) for host in plan.hosts] == [
        ("node-1", (0, 1, 2, 3), False),
        ("node-2", (0, 1, 2, 3), False),
        ("node-3", (0, 1, 2, 3), True),
    ]
    wish = wish_of(path, plan)
    assert (wish.nodes, wish.gpus_per_node, wish.account, wish.requeue) == (3, 4, "vision", True)


def test_with_hosts_as_many_nodes_are_taken(tmp_path: Path) -> None:
    path = write(tmp_path, "hosts: [{name: a, gpus: 4}, {name: b, gpus: 8}]\nslurm: {partition: gpu}")
    plan, _ = load_plan(path)
    wish = wish_of(path, plan)
    assert (wish.nodes, wish.gpus_per_node, wish.partition) == (2, 8, "gpu")


@pytest.mark.parametrize(
    ("machines", "says"),
    [
        ("slurm: {gpus_per_node: 4}", "3:1: slurm.nodes: is missing"),
        ("slurm: {nodes: 1, gpus_per_node: 4}", "run.tasks.worker.replicas"),
        (
            "hosts: [{name: a, gpus: 4}, {name: b, gpus: 4}]\nslurm: {nodes: 2}",
            "4:16: slurm.nodes: as many nodes",
        ),
        ("slurm: {nodes: 2, gpus_per_node: 4, options: [--nodes=9]}", "--nodes is set by orch"),
        ("slurm: {nodes: 2, gpus_per_node: 4, options: ['-p gpu']}", "must be a long option of sbatch"),
        ("slurm: {nodes: 2, gpus_per_node: 4, partition: 'a b'}", "must be one word"),
        ("ssh: {}", "hosts: is missing: the machines"),
    ],
)
def test_what_cannot_be_is_said_with_its_place(tmp_path: Path, machines: str, says: str) -> None:
    with pytest.raises(SpecError) as raised:
        load_plan(write(tmp_path, machines))
    assert says in str(raised.value)
