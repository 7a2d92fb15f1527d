"""Finds the modules that a script needs: all that it and the modules beside it always import, with file and line."""

from __future__ import annotations

import os

from orchestrator.both.script import FRAMEWORKS, files_of, followed

SOURCE_BYTES_MAX = 1 << 20
"""A larger script is not sent to be compiled."""

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
    return needed
