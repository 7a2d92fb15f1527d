"""One declaration of each order: whoever sends, does, fakes or plays one knows it, and by the same types."""

from __future__ import annotations

import ast
import inspect
import pkgutil
from importlib import import_module
from typing import Any, get_args, is_typeddict

import pytest

from orchestrator.checkpoints import ABOUT
from orchestrator.head.coordinator.checkpoint_requests import VERBS
from orchestrator.host.agent.handlers import Orders
from orchestrator.host.shim.loop import Shim
from orchestrator.protocol import orders, reports
from orchestrator.protocol.check import check_of
from orchestrator.protocol.orders import checkpoints, tasks
from orchestrator.protocol.orders.base import CheckpointsDo, Fence, Verb
from tests.protocol_orders import BY_NAME, PACKAGE, TABLE, declared, senders, trees
from tests.protocol_values import ASKED, fields, valid
from tests.sim import agent as sim_agent

each_verb = pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)


def methods(owner: type) -> set[str]:
    return {name for name in dir(owner) if name.startswith("_on_")}


def named(type_: type) -> str:
    """Return how the handlers write a type: its module is imported for annotations only."""
    return f"{type_.__module__.rpartition('.')[2]}.{type_.__name__}"


def test_every_order_is_declared_once_under_its_name() -> None:
    assert [(name.lower(), name) for name, _ in declared()] == [(row.name, row.name.upper()) for row in TABLE]
    assert len(BY_NAME) == len(TABLE) > 25


@each_verb
def test_who_does_it_knows_it_by_the_same_types(row: Verb[Any, Any]) -> None:
    """Mypy holds what is within the method to the types that it names; this holds these to the declared ones."""
    do = getattr(Orders, f"_on_{row.name}", None)
    if do is None:
        assert {"task", "generation"} <= fields(row.request).keys(), "an agent forwards what names a task"
        assert hasattr(Shim, f"_on_{row.name}")
        return
    method = inspect.signature(do)
    assert method.parameters["order"].annotation == named(row.request)
    assert method.return_annotation in {"None", named(row.answer), f"{named(row.answer)} | None"}


def test_nothing_else_is_done() -> None:
    assert methods(Orders) | methods(Shim) == {f"_on_{row.name}" for row in TABLE}


@each_verb
def test_the_host_is_told_which_fence_it_has(row: Verb[Any, Any]) -> None:
    frame = row({}).fields
    assert frame.get("fence", "newest") == row.fence.value


def test_what_is_not_known_of_a_field_that_may_be_missing_is_left_out() -> None:
    seed = tasks.RELEASE(
        {"run": "r", "epoch": 1, "generation": 1, "task": "worker:0", "env": {}, "seed": None, "port": 0}
    )
    assert seed.fields.keys() == {"order", "run", "epoch", "generation", "task", "env", "port"}
    snapshot = checkpoints.SNAPSHOT(
        {"run": "r", "epoch": 1, "generation": 1, "dir": "/c", "python": "p", "path": None}
    )
    assert snapshot.fields["path"] is None, "a field that must be there is null"


def test_what_an_order_is_refused_with_is_raised_on_hosts_and_known_on_the_head() -> None:
    codes = {code for row in TABLE for code in row.refusals}
    texts = {
        room: "".join(path.read_text() for folder in folders for path in (PACKAGE / folder).rglob("*.py"))
        for room, folders in (
            ("hosts", ("host", "checkpoints", "both")),
            ("the head", ("core", "head")),
        )
    }
    assert len(codes) > 6
    assert [(room, code) for room, text in texts.items() for code in codes if f'"{code}"' not in text] == []


@each_verb
def test_what_is_fenced_names_run_and_epoch(row: Verb[Any, Any]) -> None:
    assert row.fence is Fence.ANYBODY or {"run", "epoch"} <= fields(row.request).keys()


@each_verb
def test_somebody_on_the_head_node_sends_it(row: Verb[Any, Any]) -> None:
    rooms = {file.partition("/")[0] for file in senders()[row.name]}
    assert rooms
    assert rooms <= {"head", "cli", "client"}


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
    assert spelt == {*to_shims, "protocol/orders/base.py"}


def test_the_simulators_agent_plays_every_order_or_says_why_not() -> None:
    played = {name.removeprefix("_on_") for name in dir(sim_agent.Agent)} & BY_NAME.keys()
    assert played | sim_agent.NOT_PLAYED.keys() == BY_NAME.keys()
    assert not played & sim_agent.NOT_PLAYED.keys()


@each_verb
def test_the_fake_agent_answers_it_with_a_value_of_its_type(row: Verb[Any, Any]) -> None:
    type_: Any = row.answer
    assert check_of(type_, ASKED)(valid(type_)) is not None


def test_an_order_is_its_fields_and_its_name() -> None:
    order = checkpoints.HIGHEST({"run": "t-1", "epoch": 3, "dir": "/c"})
    assert order.verb is checkpoints.HIGHEST
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
    modules = (
        import_module(f"{orders.__name__}.{name}") for _, name, _ in pkgutil.iter_modules(orders.__path__)
    )
    defined = {name for module in modules for name, value in vars(module).items() if is_typeddict(value)}
    defined -= {name for name in defined if hasattr(reports, name)}
    assert defined - used == {"Sent", "OfRun", "OfTask", "OfFile"}, "the bases of the others"
