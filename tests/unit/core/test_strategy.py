"""The table of strategies: a row is all that the core and the spec need to know of one."""

from __future__ import annotations

import ast
import json
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest

from orchestrator.both.script import FRAMEWORKS
from orchestrator.core import strategy
from orchestrator.core.errors import SpecError
from orchestrator.core.launching import environment as launch
from orchestrator.core.plan import Plan, TaskId
from orchestrator.core.state.phase_states import Phase
from orchestrator.core.strategy import STRATEGIES, Strategy
from orchestrator.spec.plan import load_plan
from tests.unit.core.world import World

ROOT = Path(__file__).parents[3] / "orchestrator"


def neighbours(plan: Plan, addresses: object, task: TaskId) -> dict[str, str]:
    assert isinstance(addresses, dict)
    return {"RING_NEXT": addresses[TaskId("worker", (task.index + 1) % len(plan.tasks))]}


RING = Strategy(
    name="ring",
    task_types=("worker", "evaluator"),
    required_types=(("worker",),),
    wiring=neighbours,
    alone=frozenset({"evaluator"}),
    shrinks=frozenset({"worker"}),
    when_fewer="the ring is shorter",
    runtime_module="ring",
    env=MappingProxyType({"RING_SPEED": "1"}),
    needs=MappingProxyType({"keras": "the version of Keras"}),
    kerases=(3,),
    frameworks=("jax",),
    packages=("jax", "jaxlib"),
)

SPEC = """version: 1
name: round
hosts: [{name: a, transport: local, slots: 3}]
run:
  strategy: ring
  script: train.py
  tasks: {worker: {replicas: 3, replicas_min: 2}}
"""


@pytest.fixture
def ring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(strategy._BY_NAME, "ring", RING)


def written(directory: Path, text: str) -> Path:
    (directory / "train.py").touch()
    file = directory / "cluster.yaml"
    file.write_text(text)
    return file


@pytest.mark.usefixtures("ring")
def test_a_strategy_that_is_only_a_row_is_planned_launched_and_runs_to_its_end(tmp_path: Path) -> None:
    plan, _ = load_plan(written(tmp_path, SPEC + "  keras: 3\n"))
    first, *_, last = (task.id for task in plan.tasks)
    assert launch.wiring(plan, {first: "a:1", last: "a:3", TaskId("worker", 1): "a:2"}, last) == {
        "RING_NEXT": "a:1"
    }
    assert launch.environment(plan, "round-1", 1, first, 0, None)["RING_SPEED"] == "1"
    assert json.loads(launch.runtime_options(plan)) == {
        "strategy": "ring",
        "frameworks": ["jax"],
        "packages": ["jax", "jaxlib"],
        "module": "ring",
        "keras": 3,
    }
    world = World(plan)
    world.begin()
    world.go(600.0)
    assert world.run.phase is Phase.SUCCEEDED


def test_what_a_row_gives_its_tasks_cannot_be_set_in_a_spec(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names follow from its wiring, and stand nowhere else."""
    row = replace(STRATEGIES["processes"], name="jax", wiring=lambda *_: {"JAX_PEERS": "1"})
    monkeypatch.setitem(strategy._BY_NAME, "jax", row)
    text = SPEC.replace("strategy: ring", "strategy: jax") + "  env: {JAX_PEERS: mine}\n"
    with pytest.raises(SpecError, match="JAX_PEERS is set by orch for each task of `strategy: jax`"):
        load_plan(written(tmp_path, text))
    assert STRATEGIES["horovod"].gives() > STRATEGIES["processes"].gives() > {"RANK", "MASTER_ADDR"}


@pytest.mark.usefixtures("ring")
def test_what_a_row_forbids_and_needs_is_said_of_the_spec(tmp_path: Path) -> None:
    more = "  keras: 2\n  communication: ring\n  bytes_per_pack: 50MB\n  transparent: true\n"
    with pytest.raises(SpecError) as caught:
        load_plan(written(tmp_path, SPEC + more))
    said = str(caught.value)
    assert "run.keras: ring trains with Keras 3 only; got 2" in said
    assert "run.communication: is for multi_worker_mirrored; the strategy is ring" in said
    assert "run.bytes_per_pack: is for multi_worker_mirrored, mirrored; the strategy is ring" in said
    assert "run.transparent: works with multi_worker_mirrored, mirrored, central_storage;" in said
    with pytest.raises(SpecError, match="ring needs `keras:`, the version of Keras"):
        load_plan(written(tmp_path, SPEC))


def test_what_a_host_takes_for_a_framework_is_what_the_rows_say_where_they_say_nothing_else() -> None:
    """Hosts read scripts without the core; with a row of its own, a strategy tells them its frameworks."""
    assert Strategy("any", ("worker",), (("worker",),)).frameworks == FRAMEWORKS


def test_parameter_servers_are_told_what_their_row_says() -> None:
    row = STRATEGIES["parameter_server"]
    assert launch.strategy_options(row) == {
        "strategy": "parameter_server",
        "frameworks": ["tensorflow", "keras", "tf_keras"],
        "packages": ["tensorflow", "keras", "tf_keras", "numpy"],
        "module": "server",
        "tf_class": "ParameterServerStrategy",
        "served": ["ps", "worker"],
    }


def _asks_for_a_name(node: ast.AST) -> bool:
    """Whether it compares with, or looks up by, the name of a strategy."""
    asked: list[ast.AST | None] = []
    names = {name for name in STRATEGIES if "_" in name}  # the others are also words for other things
    if isinstance(node, ast.Compare):
        asked, names = [node.left, *node.comparators], set(STRATEGIES)
    elif isinstance(node, ast.MatchValue):
        asked = [node.value]
    elif isinstance(node, ast.Dict):
        asked = list(node.keys)
    elif isinstance(node, ast.Subscript):
        asked = [node.slice]
    return any(isinstance(each, ast.Constant) and each.value in names for each in asked)


def test_no_other_module_asks_for_a_strategy_by_its_name() -> None:
    asking = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in ROOT.rglob("*.py")
        if path != ROOT / "core" / "strategy.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Compare | ast.MatchValue | ast.Dict | ast.Subscript)
        and _asks_for_a_name(node)
    ]
    assert asking == []
