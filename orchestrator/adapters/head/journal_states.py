"""The runs of a journal as JSON: written, read again, and set aside where they cannot be read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from orchestrator.adapters.head.journal_migration import migrated_text
from orchestrator.core.model import Run


@dataclass(frozen=True, slots=True)
class Kept:
    """A run as the journal holds it."""

    run: Run
    created: str
    ended: str | None
    written_at: float
    """The monotonic instant at which the state was written, by the clock of its writer."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A run of the journal whose state this program cannot read. It is set aside: nothing is decided about it."""

    run_id: str
    name: str
    ended: str | None
    why: str

    @property
    def sentence(self) -> str:
        """Say what that means."""
        goes_on = (
            "its tasks may be training, and nobody watches them" if self.ended is None else "it has ended"
        )
        return f"{self.run_id} is set aside: its state in the journal cannot be read ({self.why}); {goes_on}"


@dataclass(frozen=True, slots=True)
class Contents:
    """Every run of a journal, oldest first."""

    kept: tuple[Kept, ...] = ()
    unreadable: tuple[Unreadable, ...] = ()

    @property
    def set_aside(self) -> tuple[Unreadable, ...]:
        """Return those that may still go on."""
        return tuple(one for one in self.unreadable if one.ended is None)


COLUMNS = "run_id, name, state, created, ended, written_at"
"""Of the table of runs, in the order of `contents_of`."""


def contents_of(rows: Iterable[Sequence[Any]]) -> Contents:
    """Read rows of the table of runs."""
    kept: list[Kept] = []
    unreadable: list[Unreadable] = []
    for run_id, name, state, created, ended, written_at in rows:
        try:
            kept.append(Kept(read_run(state), created, ended, written_at))
        except ValueError as e:
            unreadable.append(Unreadable(run_id, name, ended, _in_short(e)))
    return Contents(tuple(kept), tuple(unreadable))


def _in_short(error: ValueError) -> str:
    """Say where a state goes wrong; all of pydantic's complaints would fill a page."""
    if not isinstance(error, ValidationError):
        return str(error)
    found = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, found['loc']))}: {found['msg']}"


def dump_run(run: Run) -> str:
    """Return a run as JSON, as the journal keeps it."""
    return dump(Run, run)


def read_run(state: str) -> Run:
    """Read what `dump_run` has written, of 0.1.0 too. ValueError where it is no run that this program understands."""
    return adapter(Run).validate_json(migrated_text(state))  # type: ignore[no-any-return]


_ADAPTERS: dict[type[Any], TypeAdapter[Any]] = {}


def adapter(type_: type[Any]) -> TypeAdapter[Any]:
    """Return what reads and writes values of a type. Made once a type: pydantic reads all of its fields for it."""
    if type_ not in _ADAPTERS:
        _ADAPTERS[type_] = TypeAdapter(type_)
    return _ADAPTERS[type_]


def dump(type_: type[Any], value: object) -> str:
    """Return a value as JSON."""
    return adapter(type_).dump_json(value).decode()
