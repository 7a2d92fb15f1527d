"""Values of the core as JSON."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter

_ADAPTERS: dict[type[Any], TypeAdapter[Any]] = {}


def adapter(type_: type[Any]) -> TypeAdapter[Any]:
    """Return what reads and writes values of a type. Made once a type: pydantic reads all of its fields for it."""
    if type_ not in _ADAPTERS:
        _ADAPTERS[type_] = TypeAdapter(type_)
    return _ADAPTERS[type_]


def dump(type_: type[Any], value: object) -> str:
    """Return a value as JSON."""
    return adapter(type_).dump_json(value).decode()
