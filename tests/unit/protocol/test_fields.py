"""In how many files a field of a report stands, of those that a report passes: each more is one more to edit."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any, get_args, get_type_hints, is_typeddict

import orchestrator
from orchestrator.protocol import reports
from tests.protocol_orders import TABLE

PACKAGE = Path(orchestrator.__file__).parent

PASSED = {
    f"orchestrator.{module}"
    for module in (
        *("protocol.reports", "protocol.measures", "protocol.runtime_lines"),
        *("core.events", "core.state.task", "core.state.host", "core.ends", "core.saving"),
    )
}
"""The modules that declare what a report says. Who imports one of them has to do with reports."""

FILES_MAX = 5
"""The limit of the median."""


def passes(module: str, tree: ast.Module) -> bool:
    """Return whether a report passes a module."""
    return module in PASSED or any(
        isinstance(node, ast.ImportFrom)
        and ({node.module} | {f"{node.module}.{alias.name}" for alias in node.names}) & PASSED
        for node in ast.walk(tree)
    )


def named(tree: ast.Module) -> Iterator[object]:
    """Yield the names that a module declares, writes, or reads by a key. An attribute that is read is not one."""
    for node in ast.walk(tree):
        match node:
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.AnnAssign(target=ast.Attribute(attr=name)):
                yield name
            case ast.keyword(arg=name) | ast.Subscript(slice=ast.Constant(value=name)):
                yield name
            case ast.Dict(keys=keys):
                yield from (key.value for key in keys if isinstance(key, ast.Constant))
            case ast.Call(func=ast.Attribute(attr="get"), args=[ast.Constant(value=name), *_]):
                yield name


def homonyms() -> set[str]:
    """Return the names that orders and their answers have too, such as `generation`: they stand for other facts."""
    found: set[str] = set()
    of_task = get_type_hints(reports.Task).keys()

    def look(hint: Any) -> None:
        if is_typeddict(hint) and hint.__module__ != reports.__name__:
            hints = get_type_hints(hint)
            found.update(hints.keys() - of_task if of_task <= hints.keys() else hints)
            for inner in hints.values():
                look(inner)
        for argument in get_args(hint):
            look(argument)

    for row in TABLE:
        look(row.request)
        look(row.answer)
    return found


def test_a_field_of_a_report_stands_in_few_files() -> None:
    where: dict[object, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text())
        module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        if passes(module, tree):
            for name in named(tree):
                where.setdefault(name, set()).add(module)
    fields = {
        name
        for type_ in (reports.Task, reports.TaskExit, reports.HostSample)
        for name in get_type_hints(type_)
    } - homonyms()
    assert len(fields) > 25, "most fields are counted"
    counts = sorted((len(where[name]), name) for name in fields)
    assert median(count for count, _ in counts) <= FILES_MAX, counts
