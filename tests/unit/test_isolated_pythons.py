"""Every Python that we start is told not to import what lies in the current directory: `-P`, or `-I` on hosts.

The user's own script is started as by hand, with its directory on the path.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

import orchestrator

PACKAGE = Path(orchestrator.__file__).parent

SAFE = ("-I", "-P")

PYTHON = re.compile(
    r"sys\.executable|(.*\.)?(python|_python)|inside|os\.path\.expanduser\(.*python.*\)|.*\.python\.replace\(.*\)"
)
"""How the sources write the path of a Python."""

IN_SHELL = re.compile(
    r"""exec\s+(\{[^}]*python[^}]*\}|\{[^}]*executable[^}]*\}|"?\$p(ython)?"?|python[0-9.]*)\s+(\S+)"""
)

EXEMPT = {
    "host/shim/spawn.py": "the user's script",
    "reporting/launch_document.py": "shows how the user's script is started",
    "host/agent/environments.py: exec": "the door of an environment, which hands on the words that it is given",
    "host/agent/probe.py": "imports what a task would, and itself takes the current directory from the path",
    "checkpoints/units.py": "a place in an archive",
}
"""Why a place needs neither."""


def started(tree: ast.AST) -> Iterator[tuple[ast.expr, list[object]]]:
    """Yield each list of words that starts a Python, with the words after that."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.List, ast.Tuple)) and isinstance(node.ctx, ast.Load):
            for at, python in enumerate(node.elts[:-1]):
                before = node.elts[at - 1] if at else None
                is_argument = isinstance(before, ast.Constant) and str(before.value).startswith("--p")
                if not is_argument and PYTHON.fullmatch(ast.unparse(python)):
                    yield node, [_value(word) for word in node.elts[at + 1 :]]


def unsafe(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of each command that starts a Python without one of the options."""
    for command, words in started(tree):
        if words[0] not in SAFE:
            yield command.lineno, ast.unparse(command)
    for node in ast.walk(tree):
        if isinstance(node, (ast.JoinedStr, ast.Constant)):
            text = ast.unparse(node) if isinstance(node, ast.JoinedStr) else str(node.value)
            for found in IN_SHELL.finditer(text):
                if found[3] not in SAFE:
                    yield node.lineno, f"exec {found[0]}"


def _value(node: ast.expr) -> object:
    return node.value if isinstance(node, ast.Constant) else None


def test_every_python_that_is_started_leaves_out_the_current_directory() -> None:
    found = {
        (name, text)
        for path in sorted(PACKAGE.rglob("*.py"))
        for name in [str(path.relative_to(PACKAGE))]
        for _, text in unsafe(ast.parse(path.read_text()))
    }
    places = {f"{name}: exec" if text.startswith("exec ") else name for name, text in found}
    assert sorted(places - EXEMPT.keys()) == [], found
    assert sorted(EXEMPT.keys() - places) == [], "no more than is used"


def test_our_code_on_a_host_encodes_the_names_of_files_as_the_agent_does() -> None:
    """The agent is started with `-X utf8`, which what it starts does not inherit."""
    ours = [
        (path.name, words)
        for path in sorted((PACKAGE / "host").rglob("*.py"))
        for _, words in started(ast.parse(path.read_text()))
        if words[0] == "-I" and not {"-m", "-c"} & {*words}
    ]
    assert {name for name, _ in ours} >= {"start.py", "setup.py", "handlers.py", "shim.py"}
    assert [(name, words) for name, words in ours if ("-X", "utf8") not in pairwise(words)] == []


@pytest.mark.parametrize(
    "source",
    [
        "run([sys.executable, '-m', 'pip'])",
        "run([sys.executable, *words])",
        "run((host.python, '-c', 'import os'))",
        "run([os.path.expanduser(start.python), bundle])",
        "x = f'exec {quoted(python)} -m orchestrator'",
        "x = 'exec python3 -c 1'",
    ],
)
def test_one_that_is_not_is_found(source: str) -> None:
    assert len(list(unsafe(ast.parse(source)))) == 1
    safe = source.replace("'-m'", "'-P'").replace("'-c'", "'-I'").replace("*words", "'-I', *words")
    safe = safe.replace(" -m ", " -P -m ").replace(" -c ", " -I -c ").replace("bundle", "'-I', bundle")
    assert list(unsafe(ast.parse(safe))) == []
