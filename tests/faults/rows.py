"""The table of faults: what may go wrong, what must then happen, and which tests claim to prove it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import tomllib

ROOT = Path(__file__).parents[2]
LAST = 55


@dataclass(frozen=True, slots=True)
class Row:
    """One promise."""

    number: int
    part: str
    fault: str
    promise: str
    note: str = ""
    """What is smaller in the test than in the world."""
    missing: str = ""
    """Why no test proves it yet."""


def load() -> list[Row]:
    """All rows, in their order. TypeError where an entry has a key that no row has."""
    document = tomllib.loads((Path(__file__).parent / "rows.toml").read_text(encoding="utf-8"))
    return [Row(**entry) for entry in document["row"]]


@cache
def marked() -> dict[int, list[str]]:
    """The tests that carry a row's mark, as `file::name`, read from the sources: importing them all takes seconds."""
    found: dict[int, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        name = path.relative_to(ROOT).as_posix()
        for qualified, numbers in _marks(ast.parse(path.read_text(encoding="utf-8")), ""):
            for number in numbers:
                found.setdefault(number, []).append(f"{name}::{qualified}")
    return found


def _marks(tree: ast.Module | ast.ClassDef, prefix: str) -> Iterator[tuple[str, list[int]]]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            yield from _marks(node, f"{node.name}::")
        elif isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            for decorator in node.decorator_list:
                if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.fault":
                    yield prefix + node.name, [ast.literal_eval(argument) for argument in decorator.args]
