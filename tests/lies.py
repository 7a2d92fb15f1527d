"""What a host may say that is not so: values of any kind, and valid messages that were changed in one place.

The fuzz tests draw from it, and so do the simulator's hosts that lie.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from functools import cache
from random import Random
from typing import Any

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

Way = tuple[Any, ...]
"""The path to a place in a JSON value."""

anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.builds(lambda: 10**400)
    | st.floats()
    | st.text()
    | st.sampled_from(
        ["\x1b[31m", "\ud800", "\x00", "worker:0", "exited", "1e999", "", "gpu-b", "../x", "x" * 5000]
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)

GONE = object()
"""Stands for a place that is left out."""


def framed(message: Any, blob: bytes = b"") -> bytes:
    """Encode a frame, even one that `encode` refuses."""
    body = json.dumps(message).encode("utf-8", "surrogatepass")
    return struct.pack(">II", len(body), len(blob)) + body + blob


def places(value: Any, way: Way = ()) -> Iterator[Way]:
    """Yield the path to everything in a JSON value."""
    yield way
    if isinstance(value, dict):
        for key, entry in value.items():
            yield from places(entry, (*way, key))
    if isinstance(value, list):
        for at, entry in enumerate(value):
            yield from places(entry, (*way, at))


def changed(value: Any, way: Way, new: Callable[[Any], Any]) -> Any:
    """Return the value with something else in one place."""
    if not way:
        return new(value)
    copy = value.copy()
    made = changed(copy[way[0]], way[1:], new)
    if made is not GONE:
        copy[way[0]] = made
    elif isinstance(copy, dict):
        del copy[way[0]]
    else:
        copy.pop(way[0])
    return copy


def news(other: Any) -> list[Callable[[Any], Any]]:
    """Return the ways to change what is in a place, given something else."""
    return [lambda _: other, lambda _: GONE, lambda value: [value, other], _doubled]


def _doubled(value: Any) -> Any:
    return value * 2 if isinstance(value, (list, str)) else [value, value]


def lied(message: Any, chance: Random) -> Any:
    """Return a message that is changed in one to three places, without hypothesis: the same for the same `chance`."""
    for _ in range(chance.randint(1, 3)):
        way = chance.choice([way for way in places(message) if way] or [()])
        message = changed(message, way, chance.choice(news(chance.choice(_values()))))
        if message is GONE:
            return {}
    return message


@cache
def _values() -> list[Any]:
    """Return what hypothesis makes of `anything`, the same each time."""
    found: list[Any] = []

    @settings(max_examples=300, derandomize=True, database=None, deadline=None, phases=[Phase.generate])
    @given(anything)
    def collect(value: Any) -> None:
        found.append(value)

    collect()
    return found
