"""Checks a script before it is started: whether it saves to a path of its own, and whether it is Python at all."""

from __future__ import annotations

import ast
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

from orchestrator.core.plan import Plan
from orchestrator.core.words import counted, listed
from orchestrator.spec.literals import assigned_once, name_of, path_argument
from orchestrator.spec.restoring import Restoring, restoring

_PLACES = {
    "BackupAndRestore": (0, "backup_dir"),
    "ModelCheckpoint": (0, "filepath"),
    "CheckpointManager": (1, "directory"),
}
"""The position and the keyword of the path in each call, by the name of the call."""


@dataclass(frozen=True, slots=True)
class OwnPath:
    """One call with a literal path."""

    line: int
    call: str
    path: str

    def sentence(self, file: str, found: Restoring, source: str) -> str:
        """Return a sentence on the call, with a change that by itself lets the script survive."""
        begin = f"{file}:{self.line}: {self.call} saves into {self.path!r}, where orch does not look"
        # With the path spelled out in one place only, what restores follows what saves.
        follows = self.call == "BackupAndRestore" or (found.restores and source.count(self.path) == 1)
        if not follows and not found.restores:
            return f"{begin}, and nothing restores it: a fault costs everything; {found.way_out}"
        if not follows:
            return f'{begin}: what saves and what restores must both use os.environ["ORCH_CHECKPOINT_DIR"]'
        if Path(self.path).suffix:
            instead = f'os.path.join(os.environ["ORCH_CHECKPOINT_DIR"], {Path(self.path).name!r})'
        else:
            instead = 'os.environ["ORCH_CHECKPOINT_DIR"]'
        return f"{begin}: write {instead}"


def sentences(plan: Plan) -> list[str]:
    """Return a sentence for each such call in the plan's script; none where the script cannot be read or parsed.

    Under `transparent: true` Keras's checkpoints are orch's own, and the script may differ by worker instead.
    """
    script = Path(plan.workdir) / plan.script
    try:
        source = script.read_text(encoding="utf-8")
        if plan.options.transparent:
            from orchestrator.spec import transparent_script

            return transparent_script.sentences(source, plan.script)
        paths = own_paths(source) if plan.checkpoint is not None else []
        found = restoring(str(script), plan.root)
    except (OSError, ValueError, SyntaxError):
        return []  # the start says what is wrong with it
    if found.with_orch:
        return []  # what else it saves is for people
    return [own.sentence(plan.script, found, source) for own in paths]


def own_paths(source: str) -> list[OwnPath]:
    """Return the calls that save into a literal path. Raises SyntaxError."""
    tree = ast.parse(source)
    names = assigned_once(tree)
    paths = []
    for node in ast.walk(tree):
        call = name_of(node.func) if isinstance(node, ast.Call) else None
        if isinstance(node, ast.Call) and call in _PLACES:
            path = path_argument(node, *_PLACES[call], names)
            if path is not None:
                paths.append(OwnPath(node.lineno, call, path))
    return sorted(paths, key=lambda own: own.line)


def as_module(path: str, workdir: str) -> tuple[int, str, int] | None:
    """Return how a script that imports from its own package in any case is run; None if it imports nothing so.

    The line of its import, the module that it is, and from how many folders above the working directory.
    """
    try:
        source = Path(path).read_bytes()
        tree = ast.parse(source)
    except (OSError, SyntaxError, ValueError):
        return None
    dotted = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.level]
    if not dotted or re.search(rb"__package__\s*=(?!=)", source):
        return None
    inside = len(Path(os.path.relpath(path, workdir)).parts) - 1
    depth = max(inside, *(node.level for node in dotted))
    parts = Path(os.path.abspath(path)).with_suffix("").parts
    return dotted[0].lineno, ".".join(parts[-depth - 1 :]), depth - inside


def needs_package(path: str, workdir: str) -> str | None:
    """Return, after its name, that a script imports from its own package, which it cannot, and the way out."""
    package_use = as_module(path, workdir)
    if package_use is None:
        return None
    line, module, above = package_use
    up = f", and as `workdir` what lies {counted(above, 'folder')} above" if above else ""
    return (
        f":{line} imports from its own package, and a script lies in none; write `module: {module}` in the place of "
        f"`script`{up}"
    )


def no_module(workdir: str, module: str) -> str:
    """Say that there is no such module to run, and what is there."""
    folder = Path(workdir, *module.split("."))
    there = sorted(f"{module}.{file.stem}" for file in folder.glob("*.py") if file.stem != "__init__")
    if there:
        return f"{module} is a package without a __main__.py; name one of its modules: {listed(there)}"
    return f"no module {module} in workdir ({workdir}): there is no {'/'.join(module.split('.'))}.py"


_SHELLS = re.compile(rb"#!\s*\S*/(?:env\s+(?:-S\s+)?)?(?:ba|da|z|k|c|fi)?sh\b")
_SOURCE_BYTES_MAX = 16 << 20
_RUN_BY_PYTHON = (".pyc", ".pyz", ".zip")
"""What Python itself runs though it is no source. The runtime reads the source, so it cannot."""


def why_not_python(path: str, *, runtime: bool) -> str | None:
    """Return why the file cannot be the script, and the way out, after its name; None if it may be Python.

    A notebook is JSON, and JSON is a Python literal: Python evaluates it, does nothing, and ends with 0. Source
    that this Python cannot parse may be of the hosts' version, and otherwise fails there with its line.
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
