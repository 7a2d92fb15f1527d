"""The runs of a journal as JSON: written, read again, and set aside where they cannot be read."""

from __future__ import annotations

import json
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from orchestrator.core.state.run import Run
from orchestrator.head.journal.changes import state_after
from orchestrator.head.journal.values import checksum, dump


@dataclass(frozen=True, slots=True)
class Kept:
    """A run as the journal holds it."""

    run: Run
    created: str
    ended: str | None
    written_at: float
    """The monotonic instant at which the state was written, by the clock of its writer."""

    def instant(self, time_s: float) -> float:
        """Return the instant of a Unix time by the clock of the run's last writer, for a run that has ended."""
        if self.ended is None:
            return self.written_at
        return self.written_at + max(0.0, time_s - datetime.fromisoformat(self.ended).timestamp())


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
    owner_id: str = ""
    """The id by which hosts know the owner of these runs; empty if an older orch wrote the journal."""

    @property
    def set_aside(self) -> tuple[Unreadable, ...]:
        """Return the unreadable runs that may still go on."""
        return tuple(run for run in self.unreadable if run.ended is None)


COLUMNS = "run_id, name, created, ended, written_at, state, ended_seq, state_seq, sum"
"""The columns of the table of runs, in the order of `contents_of` and of their checksum."""

SINCE = (
    "SELECT time, run_id, type, event, changes, outcome, after, sum FROM journal "
    "WHERE run_id = ? AND seq > coalesce(?, 1 << 62) ORDER BY seq"
)
"""Reads the entries that were written since a state."""


def contents_of(rows: Iterable[Sequence[Any]], since: Callable[[str, int | None], Sequence[Any]]) -> Contents:
    """Read rows of the table of runs. `since` reads by `SINCE`."""
    kept: list[Kept] = []
    unreadable: list[Unreadable] = []
    for row in rows:
        run_id, name, created, ended, written_at, state, _, state_seq, _ = row
        try:
            check_sum(row)
            entries = since(run_id, state_seq)
            for entry in entries:
                check_sum(entry)
            run = state_after(state, [(changes, after) for *_, changes, _, after, _ in entries])
            at = json.loads(entries[-1][3])["at"] if entries else written_at
            kept.append(Kept(run, created, ended, at))
        except ValueError as e:
            unreadable.append(Unreadable(run_id, name, ended, _in_short(e)))
    return Contents(tuple(kept), tuple(unreadable))


def check_sum(row: Sequence[Any]) -> None:
    """Raise ValueError if a row of the journal is not as it was written: its last value is its checksum."""
    if checksum(row[:-1]) != row[-1]:
        raise ValueError("its checksum is wrong: the disk returns other bytes than were written")


def _in_short(error: ValueError) -> str:
    """Return the first error of pydantic in a state; all of them would fill a page."""
    if not isinstance(error, ValidationError):
        return str(error)
    problem = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}"


def dump_run(run: Run) -> str:
    """Return a run as JSON, as the journal keeps it."""
    return dump(Run, run)


_packed: tuple[Run, str] | None = None
"""The last result of `packed_run`: all hosts of a run get the same text."""

UNPACKED_BYTES_MAX = 64 << 20


def packed_run(run: Run) -> str:
    """Return a run as a compressed text, which hosts keep. With 1,000 tasks, the JSON has 1.2 MB."""
    global _packed
    known = _packed
    if known is None or known[0] is not run:
        known = run, b64encode(zlib.compress(dump_run(run).encode())).decode()
        _packed = known
    return known[1]


def unpacked(state: str) -> str:
    """Return the JSON that `packed_run` has compressed, or that is JSON already. ValueError for anything else."""
    if state.startswith("{"):
        return state
    inflate = zlib.decompressobj()
    try:
        text = inflate.decompress(b64decode(state, validate=True), UNPACKED_BYTES_MAX)
    except zlib.error as e:
        raise ValueError(f"it cannot be unpacked: {e}") from e
    if not inflate.eof:
        raise ValueError("it is cut off, or too large")
    return text.decode()


def read_run(state: str) -> Run:
    """Read what `dump_run` has written. Raises ValueError if it is no run that this program understands."""
    return state_after(state, ())
