"""In how many files a field of a report stands: each more is one more to edit.

The aim is a median of 5. It is kept where the files are counted which a report passes, and the names which stand for a
fact of a report alone. By name alone, in all files and with words of every day such as `task`, `code` and `error`,
whose declarations have mostly nothing to do with reports, it is 7; the second limit keeps that from growing. A new
fact stands in two: its row, and the line that measures it.
"""

from __future__ import annotations

import ast
import re
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
"""The limit of the median, in files that a report passes."""

FILES_BY_NAME_MAX = 7
"""The limit of the median in all files, of all names."""


_IMPORT = re.compile(r"^\s*from (orchestrator[\w.]*) import (\([^)]*\)|[^\n]*)", re.MULTILINE)


def passes(module: str, text: str) -> bool:
    """Return whether a report passes a module."""
    return module in PASSED or any(
        from_ in PASSED or any(f"{from_}.{name}" in PASSED for name in re.findall(r"\w+", names))
        for from_, names in _IMPORT.findall(text)
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
    passed: dict[object, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        is_passed = passes(module, text)
        for name in named(ast.parse(text)):
            where.setdefault(name, set()).add(module)
            if is_passed:
                passed.setdefault(name, set()).add(module)
    types = (reports.Task, reports.TaskExit, reports.HostSample)
    fields = {name for type_ in types for name in get_type_hints(type_)}
    own = fields - homonyms()
    assert len(own) > 25, "most fields are counted"
    counts = sorted((len(passed[name]), name) for name in own)
    assert median(count for count, _ in counts) <= FILES_MAX, counts
    by_name = sorted((len(where[name]), name) for name in fields)
    assert median(count for count, _ in by_name) <= FILES_BY_NAME_MAX, by_name
