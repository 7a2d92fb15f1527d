"""What an entry of the journal holds beside its event, so that it can be replayed.

Heartbeats that only move numbers have no entry of their own, and a state also changes where a coordinator takes it up,
or where nothing could be decided for a while. So an entry says how the state had changed since the entry before, and
what was decided. The first entry that a coordinator writes of a run holds the whole state.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from typing import Any, get_args

from pydantic_core import to_jsonable_python

from orchestrator.adapters.head.journal_states import adapter
from orchestrator.core.decision import Decision
from orchestrator.core.events import Event
from orchestrator.core.model import Run


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of the journal, as far as it can be read."""

    seq: int
    time: str
    type: str
    event: Event | None
    """None where this program does not understand it."""
    changes: bytes | None
    """How the state had changed since the entry before."""
    outcome: Outcome | None
    """What was decided; None where the core did not decide it, or where an older orch did."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of an event."""

    decision: Decision | None = None
    raised: str | None = None
    """The fault of ours that stopped the decisions about the run."""

    def to_json(self) -> str:
        """Return it as the journal keeps it."""
        told = {"raised": self.raised} if self.decision is None else asdict(self.decision)
        return json.dumps(told, ensure_ascii=False)

    @staticmethod
    def of_json(text: str) -> Outcome:
        """Read what `to_json` has written."""
        told = json.loads(text)
        if "raised" in told:
            return Outcome(raised=told["raised"])
        return Outcome(Decision(told["phase"], tuple(told["orders"]), tuple(told["notes"])))


_EVENTS: Mapping[str, type[Any]] = {kind.__name__: kind for kind in get_args(Event)}

ROWS = "SELECT seq, time, type, event, changes, outcome FROM journal WHERE run_id = ? ORDER BY seq"
"""What `entry_of` reads."""

ROWS_BEFORE_V3 = ROWS.replace("changes, outcome", "NULL, NULL")


def entry_of(row: Sequence[Any]) -> Entry:
    """Read a row of the journal."""
    seq, time, type_, event, packed, outcome = row
    try:
        known = adapter(_EVENTS[type_]).validate_json(event)
    except (KeyError, ValueError):
        known = None
    return Entry(seq, time, type_, known, packed, Outcome.of_json(outcome) if outcome is not None else None)


def changes(old: Run | None, new: Run) -> bytes | None:
    """Return what has to be changed in `old` to get `new`: None for nothing, without `old` the whole state."""
    if old is None:
        return _packed({"run": to_jsonable_python(new)})
    found = _changed(old, new)
    return _packed({"changed": found}) if found is not None else None


def _packed(told: Mapping[str, Any]) -> bytes:
    """Return it small: with 64 hosts the numbers of their heartbeats are 35 KB, and 8 KB so."""
    return zlib.compress(json.dumps(told, ensure_ascii=False, separators=(",", ":")).encode())


def _changed(old: Any, new: Any) -> Any:
    """Return the changes of a part: an object goes deeper, a list of one holds the new value. None: no change."""
    if old is new:
        return None
    if is_dataclass(old) and type(old) is type(new):
        parts = {f.name: _changed(getattr(old, f.name), getattr(new, f.name)) for f in fields(old)}
    elif isinstance(old, tuple) and isinstance(new, tuple) and len(old) == len(new) and _has_parts(old):
        parts = {str(i): _changed(*pair) for i, pair in enumerate(zip(old, new, strict=True))}
    else:
        return None if old == new else [to_jsonable_python(new)]
    found = {name: part for name, part in parts.items() if part is not None}
    return found or None


def _has_parts(value: tuple[Any, ...]) -> bool:
    return bool(value) and is_dataclass(value[0])


def changed(run: Run | None, packed: bytes | None) -> Run | None:
    """Return the run with the changes of an entry; None where they cannot be applied to it.

    ValueError where what follows is no state that this program understands.
    """
    if packed is None:
        return run
    told = json.loads(zlib.decompress(packed))
    if "run" in told:
        return _read(told["run"])
    if run is None:
        return None
    state = to_jsonable_python(run)
    return _read(state) if _apply(state, told["changed"]) else None


def _read(state: Any) -> Run:
    return adapter(Run).validate_python(state)  # type: ignore[no-any-return]


def _apply(state: Any, parts: Mapping[str, Any]) -> bool:
    for name, part in parts.items():
        key: Any = int(name) if isinstance(state, list) else name
        if isinstance(state, list) and key >= len(state):
            return False
        if isinstance(part, list):
            state[key] = part[0]
        elif state[key] is None or not _apply(state[key], part):
            return False
    return True
