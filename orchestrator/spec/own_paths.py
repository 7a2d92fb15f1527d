"""Find where a script saves its checkpoints into a path of its own, where orch does not look for them.

What is saved there can be neither verified nor fenced, and after a failure orch says that the run starts at step 0.
Only paths that the source spells out are found: a literal, an f-string or a join that begins with one, or a name that
is assigned once to one of these.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from orchestrator.core.plan import Plan

_PLACES = {
    "BackupAndRestore": (0, "backup_dir"),
    "ModelCheckpoint": (0, "filepath"),
    "CheckpointManager": (1, "directory"),
}
"""The position and the keyword of the path in each call, by the name of the call."""


@dataclass(frozen=True, slots=True)
class OwnPath:
    """One call that is given a literal path."""

    line: int
    call: str
    path: str

    def sentence(self, file: str) -> str:
        """Say it, with the change that lets orch see the checkpoints."""
        begin = f"{file}:{self.line}: {self.call} saves into {self.path!r}, where orch does not look: "
        if Path(self.path).suffix:
            instead = f'os.path.join(os.environ["ORCH_CHECKPOINT_DIR"], {Path(self.path).name!r})'
        else:
            instead = 'os.environ["ORCH_CHECKPOINT_DIR"]'
        return f"{begin}write {instead}"


def sentences(plan: Plan) -> list[str]:
    """Return a sentence for each such call in the plan's script; none where the script cannot be read or parsed."""
    if plan.checkpoint is None or plan.options.transparent:
        return []
    try:
        found = own_paths((Path(plan.workdir) / plan.script).read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):
        return []  # the start says what is wrong with it
    return [one.sentence(plan.script) for one in found]


def own_paths(source: str) -> list[OwnPath]:
    """Return the calls that save into a path which the source spells out. Raises SyntaxError."""
    tree = ast.parse(source)
    names = _assigned_once(tree)
    found = []
    for node in ast.walk(tree):
        call = _name_of(node.func) if isinstance(node, ast.Call) else None
        if isinstance(node, ast.Call) and call in _PLACES:
            position, keyword = _PLACES[call]
            given = next((k.value for k in node.keywords if k.arg == keyword), None)
            if given is None and len(node.args) > position:
                given = node.args[position]
            path = _literal(given, names)
            if path is not None:
                found.append(OwnPath(node.lineno, call, path))
    return sorted(found, key=lambda one: one.line)


def _assigned_once(tree: ast.Module) -> dict[str, ast.expr]:
    values: dict[str, list[ast.expr]] = {}
    for node in ast.walk(tree):
        for target, value in _assignments(node):
            values.setdefault(target, []).append(value)
    return {name: found[0] for name, found in values.items() if len(found) == 1}


def _assignments(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Name):
                yield target.id, node.value
    elif isinstance(node, ast.AnnAssign) and node.value is not None and isinstance(node.target, ast.Name):
        yield node.target.id, node.value


def _name_of(function: ast.expr) -> str | None:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", None)


def _literal(node: ast.expr | None, names: dict[str, ast.expr], depth: int = 0) -> str | None:
    """Return the path, with `{…}` for what is filled in later; None where its beginning is not spelled out."""
    if depth > 8:
        return None  # a name that is assigned from itself
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.Name(id=name) if name in names:
            return _literal(names[name], names, depth + 1)
        case ast.JoinedStr(values=[ast.Constant(value=str(text)), *rest]):
            return text + ("{…}" if rest else "")
        case ast.Call(func=function, args=[first, *rest]) if _name_of(function) in ("join", "Path"):
            begin = _literal(first, names, depth + 1)
            tail = [_literal(part, names, depth + 1) or "{…}" for part in rest]
            return None if begin is None else "/".join([begin.rstrip("/"), *tail])
        case ast.BinOp(left=left, op=ast.Div() | ast.Add() as op, right=right):
            begin = _literal(left, names, depth + 1)
            tail_text = _literal(right, names, depth + 1) or "{…}"
            return None if begin is None else begin + ("/" if isinstance(op, ast.Div) else "") + tail_text
    return None
