"""Types for instants of the coordinator's monotonic clock, in seconds, by which all instants in a state are found.

Every float of the state is an instant, or its name says its unit (`_s`, `_bytes`, `_percent`, `_time` for Unix time).
Instants never leave the process. Two things happen to all of them at once, whatever they belong to: another coordinator
takes the journal (`rebased`), or nothing could be decided for a while (`stood_still`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from typing import Annotated, Any, TypeVar, get_args, get_type_hints


class Kind(Enum):
    """What an instant is used for."""

    PAST = "past"
    """Silence, standstills and ages are counted from it."""
    DUE = "due"
    """Something happens by itself when it has come."""
    TOLD = "told"
    """A host's own instant, carried over to this clock: the order of the tasks' ends depends on it."""


Instant = Annotated[float, Kind.PAST]
Deadline = Annotated[float, Kind.DUE]
ToldInstant = Annotated[float, Kind.TOLD]

_T = TypeVar("_T")


_known: dict[type[Any], dict[str, Kind]] = {}


def instants_of(type_: type[Any]) -> dict[str, Kind]:
    """Return which fields of a dataclass are instants, by name."""
    if type_ not in _known:  # cached by type, since all of its type hints have to be read
        hints = get_type_hints(type_, include_extras=True)
        kinds = {field.name: _kind(hints[field.name]) for field in fields(type_)}
        _known[type_] = {name: kind for name, kind in kinds.items() if kind is not None}
    return _known[type_]


def _kind(hint: Any) -> Kind | None:
    """Find the mark in `Instant`, or in `Instant | None`."""
    for part in (hint, *get_args(hint)):
        for mark in getattr(part, "__metadata__", ()):
            if isinstance(mark, Kind):
                return mark
    return None


def is_due(at: Deadline | None, now: Instant) -> bool:
    """Return whether a deadline has come; None is no deadline."""
    return at is not None and at <= now


def rebased(state: _T, delta_s: float) -> _T:
    """Return the state with all its instants moved by `delta_s`: no time passed for it while no coordinator lived.

    The monotonic clock of another boot may be ahead or far behind; nobody's deadline passes, and nobody's silence
    counts, because nobody was there.
    """
    moved: _T = _moved(state, lambda at, _: at + delta_s)
    return moved


def stood_still(state: _T, waited_s: float, at: Instant) -> _T:
    """Return the state after nothing could be decided for `waited_s` seconds, up to `at`.

    Deadlines are moved by that time, and it does not count as silence, since reports could not be handled. The times of
    reports within it are not moved beyond now. The order of the tasks' ends stays as the hosts report it.
    """

    def move(then: float, kind: Kind) -> float:
        match kind:
            case Kind.DUE:
                return then + waited_s
            case Kind.PAST:
                return min(then + waited_s, at)
            case Kind.TOLD:
                return then

    moved: _T = _moved(state, move)
    return moved


def _moved(value: Any, move: Callable[[float, Kind], float]) -> Any:
    if isinstance(value, tuple):
        return tuple(_moved(item, move) for item in value)
    if not is_dataclass(value) or isinstance(value, type):
        return value
    kinds = instants_of(type(value))
    changes = {}
    for field in fields(value):
        old = getattr(value, field.name)
        if old is not None:
            changes[field.name] = move(old, kinds[field.name]) if field.name in kinds else _moved(old, move)
    return replace(value, **changes)
