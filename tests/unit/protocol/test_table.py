"""One table of orders: whoever sends, does, fakes or plays an order knows every one, and knows it by the same types."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

import orchestrator
from orchestrator.checkpoints import ABOUT
from orchestrator.head.coordinator.checkpoint_requests import VERBS
from orchestrator.host.agent import handlers as agent_orders
from orchestrator.protocol import orders, table
from orchestrator.protocol.check import check_of
from orchestrator.protocol.orders import CheckpointsDo
from orchestrator.protocol.table import BY_NAME, TABLE, Fence, Verb
from tests.protocol_values import ASKED, fields, valid
from tests.sim import agent as sim_agent

PACKAGE = Path(orchestrator.__file__).parent

each_verb = pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)


def methods(owner: type) -> set[str]:
    return {name for name in dir(owner) if name.startswith("_on_")}


def test_every_order_is_in_the_table_once() -> None:
    named = {name: row for name, row in vars(table).items() if isinstance(row, Verb)}
    assert list(named.values()) == list(TABLE)
    assert [name.lower() for name in named] == [row.name for row in TABLE]
    assert len(BY_NAME) == len(TABLE)


@each_verb
def test_the_agent_does_it_and_knows_it_by_the_same_types(row: Verb[Any, Any]) -> None:
    """Mypy holds what is within the method to the types that it names; this holds these to the table's."""
    method = inspect.signature(getattr(agent_orders.Orders, row.handler))
    assert method.parameters["order"].annotation == f"orders.{row.request.__name__}"
    allowed = {"None", f"orders.{row.answer.__name__}", f"orders.{row.answer.__name__} | None"}
    assert method.return_annotation in allowed


def test_the_agent_does_nothing_else_and_fences_as_the_table_says() -> None:
    assert {row.handler for row in TABLE} == methods(agent_orders.Orders)
    assert {row.name for row in TABLE if row.fence is Fence.BEGINS} == set(agent_orders.BEGIN_A_RUN)
    assert {row.name for row in TABLE if row.fence is Fence.NONE} == set(agent_orders.UNFENCED)


@each_verb
def test_what_is_fenced_names_run_and_epoch(row: Verb[Any, Any]) -> None:
    assert row.fence is Fence.NONE or {"run", "epoch"} <= fields(row.request).keys()


def trees(*words: str) -> Iterator[tuple[str, ast.Module]]:
    """Yield the files of the package in which one of these words stands: to parse all takes seconds."""
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        if any(word in text for word in words):
            yield str(path.relative_to(PACKAGE)), ast.parse(text)


def test_each_is_sent_by_who_is_said_to_and_by_nobody_else() -> None:
    senders: dict[str, set[str]] = {row.name: set() for row in TABLE}
    for file, tree in trees(*(f"{row.name.upper()}(" for row in TABLE)):
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id.isupper():
                module = file.removeprefix("head/").removesuffix(".py").replace("/", ".")
                senders.setdefault(node.func.id.lower(), set()).add(module)
    assert senders == {row.name: {row.sender} for row in TABLE}


def test_no_order_is_spelt_by_hand() -> None:
    """But an agent's and a pod's own to their shims, and by the one place that makes all others."""
    spelt = {
        file
        for file, tree in trees('"order"')
        for node in ast.walk(tree)
        if isinstance(node, ast.Dict)
        for key in node.keys
        if isinstance(key, ast.Constant) and key.value == "order"
    }
    to_shims = {"host/agent/handlers.py", "host/agent/tasks.py", "host/pod/shim.py"}
    assert spelt == {*to_shims, "protocol/table.py"}


def test_the_simulators_agent_plays_every_order_or_says_why_not() -> None:
    played = {name.removeprefix("_on_") for name in dir(sim_agent.Agent)} & BY_NAME.keys()
    assert played | sim_agent.NOT_PLAYED.keys() == BY_NAME.keys()
    assert not played & sim_agent.NOT_PLAYED.keys()


@each_verb
def test_the_fake_agent_answers_it_with_a_value_of_its_type(row: Verb[Any, Any]) -> None:
    type_: Any = row.answer
    assert check_of(type_, ASKED)(valid(type_)) is not None


def test_an_order_is_its_fields_and_its_name() -> None:
    order = table.HIGHEST({"run": "t-1", "epoch": 3, "dir": "/c"})
    assert order.verb is table.HIGHEST
    assert order.fields == {"order": "highest", "run": "t-1", "epoch": 3, "dir": "/c"}


def test_what_people_ask_of_checkpoints_is_one_list() -> None:
    assert get_args(CheckpointsDo) == VERBS == ABOUT


def test_every_type_of_an_order_is_somebodys() -> None:
    """A type that no order uses is one that nobody speaks."""
    used: set[str] = set()

    def visit(type_: Any) -> None:
        if inspect.isclass(type_) and type_.__module__.startswith(f"{orders.__name__}."):
            used.add(type_.__name__)
            for hint in fields(type_).values():
                visit(hint)
        for argument in get_args(type_):
            visit(argument)

    for row in TABLE:
        visit(row.request)
        visit(row.answer)
    defined = {
        name
        for name, value in vars(orders).items()
        if inspect.isclass(value) and value.__module__.startswith(f"{orders.__name__}.")
    }
    assert defined - used == {"Order", "OfTask"}, "the bases of the others"
