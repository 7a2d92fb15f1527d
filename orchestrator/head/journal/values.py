"""Values of the core as JSON, and the checksum of a row."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any

from pydantic import TypeAdapter

_ADAPTERS: dict[type[Any], TypeAdapter[Any]] = {}


def adapter(type_: type[Any]) -> TypeAdapter[Any]:
    """Return the adapter that reads and writes values of a type. It is cached, since making one is slow."""
    if type_ not in _ADAPTERS:
        _ADAPTERS[type_] = TypeAdapter(type_)
    return _ADAPTERS[type_]


def dump(type_: type[Any], value: object) -> str:
    """Return a value as JSON."""
    return adapter(type_).dump_json(value).decode()


def checksum(values: Iterable[object]) -> int:
    """Return the checksum of a row's values. SQLite has none, and would return a text with a flipped bit."""
    total = 0
    for value in values:
        part = value if isinstance(value, bytes) else repr(value).encode()
        total = zlib.crc32(part, zlib.crc32(b"%d " % len(part), total))
    return total
