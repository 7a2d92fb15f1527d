"""A tuple of values with names, which finds and replaces a value at a cost that does not grow with their number.

>>> from typing import NamedTuple
>>> class Lamp(NamedTuple):
...     name: str
...     room: str
...     on: bool = False
>>> lamps = Roster([Lamp("a", "hall"), Lamp("b", "attic")], lambda lamp: lamp.name, lambda lamp: lamp.room)
>>> lit = lamps.with_(Lamp("b", "attic", on=True))
>>> [lamp.on for lamp in lit], lamps.named("b").on, lit.named("b").on, lit.first
([False, True], False, True, 'a')
>>> lit.at_place("attic")
[Lamp(name='b', room='attic', on=True)]
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import cached_property
from operator import is_
from typing import Any, Generic, TypeVar, cast

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")


@dataclass(frozen=True)
class _Index(Generic[K, V]):
    """Where each value stands. Rosters that differ in values only share one."""

    name_of: Callable[[V], K]
    place_of: Callable[[V], object]
    positions: dict[K, int]
    places: dict[object, list[int]]

    @cached_property
    def first(self) -> K:
        """Return the least name."""
        return min(self.positions)  # type: ignore[type-var]


class Roster(tuple[V, ...], Generic[K, V]):
    """The values, in their order. Names are unique."""

    _index: _Index[K, V]

    def __new__(
        cls,
        values: Iterable[V],
        name_of: Callable[[V], K] | None = None,
        place_of: Callable[[V], object] | None = None,
    ) -> Any:
        """Return the values, found by name and by place; without `name_of`, as `asdict` copies it, a plain tuple."""
        if name_of is None:
            return tuple(values)
        made = super().__new__(cls, values)
        made._index = _Index(name_of, place_of or name_of, {}, {})
        for position, value in enumerate(made):
            made._index.positions[name_of(value)] = position
            made._index.places.setdefault(made._index.place_of(value), []).append(position)
        return made

    @property
    def first(self) -> K:
        """Return the least name."""
        return self._index.first

    def stands_as(self, other: Roster[K, V]) -> bool:
        """Return whether one was made from the other by replacing values: names and places are the same."""
        return self._index is other._index

    def once(self, of: Callable[..., T], *given: object) -> T:
        """Return what `of` says of the roster and of what is given; reckoned anew where another object is given."""
        kept: dict[object, tuple[tuple[object, ...], Any]] = self.__dict__.setdefault("_kept", {})
        known = kept.get(of)
        if known is None or not all(map(is_, known[0], given)):
            known = kept[of] = given, of(self, *given)
        return cast("T", known[1])

    def find(self, name: K) -> V | None:
        """Return the value of that name; None if there is none."""
        position = self._index.positions.get(name)
        return None if position is None else tuple.__getitem__(self, position)

    def named(self, name: K) -> V:
        """Return the value of that name. KeyError if there is none."""
        if name not in self._index.positions:
            raise KeyError(str(name))
        return tuple.__getitem__(self, self._index.positions[name])

    @property
    def places(self) -> Collection[object]:
        """Return the places of all values, each once."""
        return self._index.places

    def at_place(self, place: object) -> list[V]:
        """Return the values of one place, in their order."""
        return [tuple.__getitem__(self, position) for position in self._index.places.get(place, ())]

    def with_(self, changed: V) -> Roster[K, V]:
        """Return the same with the value of that name replaced. KeyError if there is none."""
        index = self._index
        position = index.positions[index.name_of(changed)]
        values = list(self)
        before, values[position] = values[position], changed
        if index.place_of(before) != index.place_of(changed):
            return cast("Roster[K, V]", Roster(values, index.name_of, index.place_of))
        made = tuple.__new__(Roster, values)
        made._index = index
        return made
