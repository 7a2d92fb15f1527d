"""Reads the texts that a source spells out."""

from __future__ import annotations

import ast


def assigned_once(tree: ast.Module) -> dict[str, ast.expr]:
    """Return the values of the names that are assigned once."""
    values: dict[str, list[ast.expr]] = {}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name):
                    values.setdefault(target.id, []).append(node.value)
    return {name: assigned[0] for name, assigned in values.items() if len(assigned) == 1}


def name_of(function: ast.expr | None) -> str | None:
    """Return the last part of a dotted name; None for any other expression."""
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", None)


def path_argument(call: ast.Call, position: int, keyword: str, names: dict[str, ast.expr]) -> str | None:
    """Return the path that a call is given at this position or by this keyword, as `literal` does."""
    given = next((k.value for k in call.keywords if k.arg == keyword), None)
    if given is None and len(call.args) > position:
        given = call.args[position]
    return literal(given, names)


def literal(node: ast.expr | None, names: dict[str, ast.expr], depth: int = 0) -> str | None:
    """Return the path, with `{…}` for parts that are computed; None if its beginning is not literal."""
    if depth > 8:
        return None  # a name that is assigned from itself
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.Name(id=name) if name in names:
            return literal(names[name], names, depth + 1)
        case ast.JoinedStr(values=[ast.Constant(value=str(text)), *rest]):
            return text + ("{…}" if rest else "")
        case ast.Call(func=function, args=[first, *rest]) if name_of(function) in ("join", "Path"):
            begin = literal(first, names, depth + 1)
            tail = [literal(part, names, depth + 1) or "{…}" for part in rest]
            return None if begin is None else "/".join([begin.rstrip("/"), *tail])
        case ast.BinOp(left=left, op=ast.Div() | ast.Add() as op, right=right):
            begin = literal(left, names, depth + 1)
            tail_text = literal(right, names, depth + 1) or "{…}"
            return None if begin is None else begin + ("/" if isinstance(op, ast.Div) else "") + tail_text
    return None
