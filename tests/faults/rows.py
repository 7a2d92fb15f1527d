"""The table of faults: what may go wrong, what must then happen, and which tests claim to prove it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import tomllib

ROOT = Path(__file__).parents[2]
LAST = 120


@dataclass(frozen=True, slots=True)
class Row:
    """One promise."""

    number: int
    part: str
    fault: str
    promise: str
    note: str = ""
    """What is smaller in the test than in the world."""
    pending: str = ""
    """Why no test proves it yet. A row without a marked test needs this sentence."""


def load() -> list[Row]:
    """Return all rows, in their order. TypeError where an entry has a key that no row has."""
    document = tomllib.loads((Path(__file__).parent / "rows.toml").read_text(encoding="utf-8"))
    return [Row(**entry) for entry in document["row"]]


@cache
def marked() -> dict[str, frozenset[int]]:
    """Return the rows that each marked test claims, by `file::name`.

    Read from the sources, since importing all tests takes seconds.
    """
    found: dict[str, frozenset[int]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        name = path.relative_to(ROOT).as_posix()
        found |= marked_in(path.read_text(encoding="utf-8"), name)
    return found


def marked_in(source: str, name: str) -> dict[str, frozenset[int]]:
    """Return the marked tests of one module: marks of functions, of classes, and of the module."""
    tree = ast.parse(source)
    return {f"{name}::{test}": rows for test, rows in _marked(tree, "", _of_module(tree)) if rows}


def _marked(
    tree: ast.Module | ast.ClassDef, prefix: str, outer: frozenset[int]
) -> Iterator[tuple[str, frozenset[int]]]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            yield from _marked(node, f"{node.name}::", outer | _rows_in(node.decorator_list))
        elif isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield prefix + node.name, outer | _rows_in(node.decorator_list)


def _of_module(tree: ast.Module) -> frozenset[int]:
    rows: frozenset[int] = frozenset()
    for node in tree.body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == [
            "pytestmark"
        ]:
            marks = node.value.elts if isinstance(node.value, ast.List | ast.Tuple) else [node.value]
            rows |= _rows_in(marks)
    return rows


def _rows_in(marks: list[ast.expr]) -> frozenset[int]:
    return frozenset(
        ast.literal_eval(argument)
        for mark in marks
        if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.fault"
        for argument in mark.args
    )
