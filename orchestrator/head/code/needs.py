"""Finds the modules that a script needs: all that it and the modules beside it always import, with file and line.

And what libraries import only when they are asked for something, which would end the script after its start.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator

from orchestrator.both.script import FRAMEWORKS, files_of, followed

SOURCE_BYTES_MAX = 1 << 20
"""A larger script is not sent to be compiled."""

_IMPLIED = {
    "TensorBoard": "tensorboard",
    "plot_model": "pydot",
    "model_to_dot": "pydot",
    "load_img": "PIL",
    "read_parquet": "pyarrow",
    "read_excel": "openpyxl",
    "read_hdf": "tables",
}
"""What a call into Keras, TensorFlow or pandas imports."""
_OWNERS = (*FRAMEWORKS, "pandas")

_CHANGES_PATHS = (b"sys.path", b"addsitedir", b"importlib.reload", b"meta_path")


def source(path: str) -> str | None:
    """Return the text of the script, for a host to compile; None if it is not text, or too large."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(SOURCE_BYTES_MAX + 1)
    except (OSError, UnicodeDecodeError):
        return None
    return text if len(text) <= SOURCE_BYTES_MAX else None


def modules(path: str, root: str = "") -> dict[str, str]:
    """Return the top-level modules that the script needs, each with the `file:line` of its import.

    Modules beside the script are left out, and so are imports within `try`, `if` or a function, which may never run.
    Nothing is returned where a file changes where modules are looked up: then only running it would show what it needs.
    """
    folder = os.path.realpath(root or os.path.dirname(os.path.realpath(path)))
    needed: dict[str, str] = {}
    if not os.path.isfile(path):
        return {}  # the push says so
    for file, text, imports in followed(path, root, sure_only=True):
        if any(word in text for word in _CHANGES_PATHS):
            return {}
        place = os.path.relpath(os.path.realpath(file), folder)
        for name, line, _ in imports:
            top = name.partition(".")[0]
            is_beside = files_of(folder, name) or os.path.isdir(os.path.join(folder, top))
            if top not in FRAMEWORKS and not is_beside:
                needed.setdefault(top, f"{place}:{line}")
        for module, call, line in _implied(text):
            needed.setdefault(module, f"{place}:{line}, by {call}")
    return needed


def _implied(text: bytes) -> Iterator[tuple[str, str, int]]:
    """Yield each module that a call implies which surely is made, with the call and its line."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return
    tops: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            above = getattr(node, "module", None)
            for alias in node.names:
                tops[alias.asname or alias.name.partition(".")[0]] = (above or alias.name).partition(".")[0]
    for call in _sure_calls(tree):
        root, name = call.func, getattr(call.func, "attr", getattr(call.func, "id", ""))
        while isinstance(root, ast.Attribute):
            root = root.value
        if name in _IMPLIED and isinstance(root, ast.Name) and tops.get(root.id) in _OWNERS:
            yield _IMPLIED[name], name, call.lineno


def _sure_calls(tree: ast.Module) -> Iterator[ast.Call]:
    """Yield the calls outside of `try` and `if`, also those in functions that are so called themselves."""
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Call):
            yield node
            waiting += functions.pop(getattr(node.func, "id", ""), ast.Module([], [])).body
        is_main = isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)
        hides = (ast.Try, ast.If, ast.IfExp, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
        if is_main or not isinstance(node, hides):
            waiting += ast.iter_child_nodes(node)
