"""Find that a script is no Python, which Python would run all the same, or end with an error that does not say so.

A notebook is JSON, and JSON is a Python literal: Python evaluates it, does nothing, and ends with 0.
"""

from __future__ import annotations

import ast
import json
import os
import re

_SHELLS = re.compile(rb"#!\s*\S*/(?:env\s+(?:-S\s+)?)?(?:ba|da|z|k|c|fi)?sh\b")
_SOURCE_BYTES_MAX = 16 << 20
_RUN_BY_PYTHON = (".pyc", ".pyz", ".zip")
"""What Python itself runs though it is no source. The runtime reads the source, so it cannot."""


def why(path: str, *, runtime: bool) -> str | None:
    """Return why the file cannot be the script, and the way out, after its name; None where it may be Python.

    Source that this Python cannot parse may be of the hosts' version, and otherwise fails there with its line.
    """
    try:
        with open(path, "rb") as file:
            source = file.read(_SOURCE_BYTES_MAX)
    except OSError:
        return None  # the push names it
    if b"\0" in source:
        if not runtime and path.endswith(_RUN_BY_PYTHON):
            return None
        return "is a binary file, and not the source of a Python script; name the .py file"
    document = _json(source)
    if path.endswith(".ipynb") or (isinstance(document, dict) and "cells" in document):
        return (
            "is a notebook, which Python would read as one value and run none of its cells; "
            f"`jupyter nbconvert --to script {os.path.basename(path)}` makes a script of it"
        )
    if isinstance(document, (dict, list)):
        return "is JSON, and not a Python script; name the .py file"
    try:
        ast.parse(source)
    except (SyntaxError, ValueError):
        if path.endswith((".sh", ".bash", ".zsh")) or _SHELLS.match(source):
            return (
                "is a shell script; name the Python script that it starts, with `args` and `env` of the spec"
            )
        return None if path.endswith(".py") else "is not a Python script; name the .py file"
    return None


def _json(source: bytes) -> object:
    try:
        return json.loads(source)
    except (ValueError, RecursionError):
        return None
