"""Which modules a script needs: what it, and the modules beside it, import in any case, with file and line."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator

from orchestrator.both.script import FRAMEWORKS

SOURCE_BYTES_MAX = 1 << 20
"""A larger script is not sent to be compiled."""

_CHANGES_PATHS = (b"sys.path", b"addsitedir", b"importlib.reload", b"meta_path")


def source(path: str) -> str | None:
    """Return the text of the script, for a host to compile; None where it is no text, or too much."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(SOURCE_BYTES_MAX + 1)
    except (OSError, UnicodeDecodeError):
        return None
    return text if len(text) <= SOURCE_BYTES_MAX else None


def modules(path: str) -> dict[str, str]:
    """Return the top-level modules that the script needs, each with the `file:line` of its import.

    Not those beside the script, and none of an import within `try`, `if` or a function, which may never be done.
    Nothing where a file changes the places of modules: then only running it would tell.
    """
    folder = os.path.dirname(os.path.realpath(path))
    found: dict[str, str] = {}
    waiting, seen = [os.path.realpath(path)], set()
    while waiting:
        file = waiting.pop()
        if file in seen:
            continue
        seen.add(file)
        try:
            with open(file, "rb") as opened:
                text = opened.read()
            tree = ast.parse(text, file)
        except (OSError, SyntaxError, ValueError):
            continue  # the script will end with its own traceback
        if any(word in text for word in _CHANGES_PATHS):
            return {}
        for name, line in _imported(tree):
            top = name.partition(".")[0]
            # The files beside the script that an import of this name runs
            parts = name.split(".")
            stems = [os.path.join(folder, *parts[:count]) for count in range(1, len(parts) + 1)]
            files = [f"{stem}.py" for stem in stems] + [os.path.join(stem, "__init__.py") for stem in stems]
            beside = [file for file in files if os.path.isfile(file)]
            if beside:
                waiting += beside
            elif top not in FRAMEWORKS and not os.path.isdir(os.path.join(folder, top)):
                found.setdefault(top, f"{os.path.relpath(file, folder)}:{line}")
    return found


def _imported(node: ast.AST) -> Iterator[tuple[str, int]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from ((alias.name, child.lineno) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            if child.module and not child.level:
                yield child.module, child.lineno
        elif not isinstance(child, (ast.Try, ast.If, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield from _imported(child)
