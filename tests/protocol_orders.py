"""All orders, found where they are declared, and the modules that send them."""

from __future__ import annotations

import ast
import pkgutil
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import orchestrator
from orchestrator.protocol import orders
from orchestrator.protocol.orders.base import Verb

PACKAGE = Path(orchestrator.__file__).parent


def declared() -> Iterator[tuple[str, Verb[Any, Any]]]:
    """Yield the orders with the names under which they are declared."""
    for module in pkgutil.iter_modules(orders.__path__, f"{orders.__name__}."):
        for name, value in vars(import_module(module.name)).items():
            if isinstance(value, Verb):
                yield name, value


TABLE: tuple[Verb[Any, Any], ...] = tuple(row for _, row in declared())
BY_NAME: Mapping[str, Verb[Any, Any]] = {row.name: row for row in TABLE}


def trees(*words: str) -> Iterator[tuple[str, ast.Module]]:
    """Yield the files of the package in which one of these words stands: to parse all takes seconds."""
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text()
        if any(word in text for word in words):
            yield str(path.relative_to(PACKAGE)), ast.parse(text)


@cache
def senders() -> Mapping[str, list[str]]:
    """Return the modules that make each order."""
    found: dict[str, list[str]] = {row.name: [] for row in TABLE}
    for file, tree in trees(*(f"{row.name.upper()}(" for row in TABLE)):
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id.isupper():
                modules = found.get(node.func.id.lower())
                if modules is not None and file not in modules:
                    modules.append(file)
    return found


def as_sent(verb: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the frame of an order as the head would send it; of an unknown one, one that makes no exception of it."""
    row = BY_NAME.get(verb)
    return {**(row({}).fields if row is not None else {"order": verb}), **fields}
