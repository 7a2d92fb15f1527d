"""A test that asserts nothing is green whatever the code does."""

from __future__ import annotations

import ast
from pathlib import Path

TESTS = Path(__file__).parents[1]

ASSERTING = frozenset({"pytest.raises", "pytest.warns", "pytest.fail"})
"""Calls that assert. A function of the test's own module that asserts need not stand here."""


def assertless(source: str) -> list[str]:
    """Return the tests of a module that assert nothing, neither themselves nor by a function or method of it."""
    tree = ast.parse(source)
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    methods = {node.name for each in classes for node in each.body if isinstance(node, ast.FunctionDef)}
    asserting: set[str] = set()
    while found := {n for n, node in functions.items() if _asserts(node, asserting, methods)} - asserting:
        asserting |= found
    return [name for name in functions if name.startswith("test_") and name not in asserting]


def _asserts(function: ast.FunctionDef, helpers: set[str], methods: set[str]) -> bool:
    return any(
        isinstance(node, ast.Assert)
        or (isinstance(node, ast.Raise) and "AssertionError" in ast.unparse(node))
        or (isinstance(node, ast.Call) and _is_asserting(node.func, helpers, methods))
        for node in ast.walk(function)
    )


def _is_asserting(called: ast.expr, helpers: set[str], methods: set[str]) -> bool:
    if ast.unparse(called) in ASSERTING | helpers:
        return True
    return isinstance(called, ast.Attribute) and called.attr in helpers & methods


def test_every_test_asserts_something() -> None:
    read = {path.relative_to(TESTS): path.read_text(encoding="utf-8") for path in TESTS.rglob("test_*.py")}
    assert [f"{path}::{test}" for path, source in read.items() for test in assertless(source)] == []


def test_what_asserts_by_a_helper_counts_and_what_only_calls_does_not() -> None:
    source = (
        "def deep(): assert x\ndef helper(): deep()\ndef test_a(): helper()\n"
        "def test_b():\n    with pytest.raises(OSError): f()\n"
        "def test_c(): f()\nclass TestD:\n    def test_d(self): self.helper()\n"
        "class Page:\n    def until(self): raise AssertionError('never')\n    def text(self): return 'b'\n"
        "def test_e(page): page.until()\ndef test_f(page): page.text()\n"
    )
    assert sorted(assertless(source)) == ["test_c", "test_d", "test_f"]
