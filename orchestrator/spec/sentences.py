"""Translates pydantic's errors into one sentence that says what is wrong, and the way out.

A sentence never shows a value of `env`, `args` or `secrets`, since it may be secret.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, get_args

from pydantic import BaseModel

from orchestrator.spec.checks import SAID
from orchestrator.spec.diagnostics import Loc, did_you_mean, shown
from orchestrator.spec.document import Node
from orchestrator.spec.models import ClusterSpec

KEY = "[key]"
"""The last element of pydantic's location where the key of a mapping is wrong, and not its value."""


def sentence(error: Mapping[str, Any], node: Node | None) -> str:
    """Return the sentence for an error. `node` is the value that it is about, if there is one."""
    type_, loc, ctx = error["type"], tuple(error["loc"]), error.get("ctx", {})
    if type_ == SAID:
        return str(ctx["sentence"])
    if type_ in _BY_TYPE:
        return _BY_TYPE[type_](loc, ctx, node)
    return str(error["msg"])


def model_at(loc: Loc) -> type[BaseModel]:
    """Return the model that has the last key of a place."""
    model: type[BaseModel] = ClusterSpec
    for step in loc[:-1]:
        known = model.model_fields.get(step) if isinstance(step, str) else None
        model = (_model_in(known.annotation) if known else None) or model
    return model


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = (_model_in(part) for part in get_args(annotation))
    return next((model for model in found if model), None)


def _kind(node: Node | None) -> str:
    value = node.value if node else None
    if isinstance(value, bool):
        return "true" if value else "false"
    kinds = {dict: "a mapping", list: "a list", str: "text", int: "a number", float: "a number"}
    return kinds.get(type(value), "nothing")


def _got(node: Node | None) -> str:
    if node is None or isinstance(node.value, (dict, list)) or node.value is None:
        return f"this is {_kind(node)}"
    return f"got {shown(node.value)}"


def _missing(loc: Loc, _ctx: Mapping[str, Any], _node: Node | None) -> str:
    if loc == ("version",):
        return "is missing; write version: 1"
    about = (model_at(loc).model_fields[str(loc[-1])].description or "").split(". ")[0].rstrip(".")
    return f"is missing: {about[:1].lower()}{about[1:]}"


def _unknown_key(loc: Loc, _ctx: Mapping[str, Any], _node: Node | None) -> str:
    key, model = str(loc[-1]), model_at(loc)
    if hint := did_you_mean(key, model.model_fields):
        return f"unknown key{hint}"
    homes = [name or "the top level" for name, home in _HOMES.items() if key in home.model_fields]
    if homes:
        return f"unknown key here; it belongs to {' or '.join(homes)}"
    return f"unknown key; known here are {', '.join(model.model_fields)}"


def _homes() -> dict[str, type[BaseModel]]:
    """Return the models by the key that holds them."""
    homes: dict[str, type[BaseModel]] = {"": ClusterSpec}
    for owner in (ClusterSpec, model_at(("run", "script"))):
        for name, field in owner.model_fields.items():
            if model := _model_in(field.annotation):
                homes[name] = model
    return homes


_HOMES = _homes()


def _text(_loc: Loc, _ctx: Mapping[str, Any], node: Node | None) -> str:
    if node is not None and node.bare and node.value is not None:
        return f"must be text, and without quotes YAML reads this as {_kind(node)}; put it in quotes"
    return f"must be text, and this is {_kind(node)}"


def _choice(loc: Loc, ctx: Mapping[str, Any], node: Node | None) -> str:
    if loc == ("version",):
        return f"this orch reads version 1; {_got(node)}"
    known = re.findall(r"'([^']*)'", str(ctx.get("expected", "")))
    if loc[-1] == KEY:  # the key itself is wrong, and not its value
        word = loc[-2]
        return f"must be one of {', '.join(known)}; got {shown(word)}{did_you_mean(word, known)}"
    hint = did_you_mean(node.value, known) if node else ""
    return f"must be one of {', '.join(known)}; {_got(node)}{hint}"


def _too_short(loc: Loc, _ctx: Mapping[str, Any], _node: Node | None) -> str:
    return "there is none; list at least one host with its name" if loc == ("hosts",) else "must not be empty"


def _mapping(_loc: Loc, _ctx: Mapping[str, Any], node: Node | None) -> str:
    return f"must be a mapping (lines of key: value), and this is {_kind(node)}"


def _list(_loc: Loc, _ctx: Mapping[str, Any], node: Node | None) -> str:
    return f"must be a list, and this is {_kind(node)}"


def _bound(words: str, limit: str) -> Callable[[Loc, Mapping[str, Any], Node | None], str]:
    return lambda _loc, ctx, node: f"must be {words} {ctx[limit]}; {_got(node)}"


_BY_TYPE: Mapping[str, Callable[[Loc, Mapping[str, Any], Node | None], str]] = {
    "missing": _missing,
    "extra_forbidden": _unknown_key,
    "string_type": _text,
    "int_type": lambda _loc, _ctx, node: f"must be a whole number; {_got(node)}",
    "bool_type": lambda _loc, _ctx, node: f"must be true or false; {_got(node)}",
    "literal_error": _choice,
    "greater_than_equal": _bound("at least", "ge"),
    "less_than_equal": _bound("at most", "le"),
    "too_short": _too_short,
    "too_long": lambda _loc, ctx, _node: (
        f"must be at most {ctx['max_length']} long; it has {ctx['actual_length']}"
    ),
    "model_type": _mapping,
    "dict_type": _mapping,
    "list_type": _list,
    "tuple_type": _list,
}
