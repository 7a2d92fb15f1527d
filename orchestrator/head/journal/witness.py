"""How far the journal had come, in a small file beside it, written after each transaction.

SQLite takes a write-ahead log up to its first damaged frame, and says nothing of what came after it: one flipped bit
and the newest runs had never been. So whoever opens the journal compares it with this file. It is not synced, since a
transaction is on the disk before the file says so: after a power cut the file is older than the journal, never newer.
"""

from __future__ import annotations

import os
import sqlite3
import zlib
from typing import NamedTuple

SUFFIX = ".seen"

_BYTES = 64


class Marks(NamedTuple):
    """The highest numbers that were given out."""

    epoch: int
    entry: int
    event: int


def marks_of(db: sqlite3.Connection) -> Marks:
    """Return how far a journal has come. The numbers of rows that were removed since count too."""
    numbers = dict(db.execute("SELECT name, seq FROM sqlite_sequence").fetchall())
    (epoch,) = db.execute("SELECT value FROM meta WHERE key = 'epoch'").fetchone()
    return Marks(int(epoch), numbers.get("journal", 0), numbers.get("events", 0))


def read(path: str) -> Marks | None:
    """Return what the file beside the journal says; None where there is none, or it is damaged itself."""
    try:
        with open(path + SUFFIX, "rb") as file:
            *numbers, total = file.read().split()
        marks = Marks(*map(int, numbers))
    except (OSError, ValueError, TypeError):
        return None
    return marks if int(total) == _sum(marks) else None


def why_behind(path: str, db: sqlite3.Connection, seen: Marks | None) -> str | None:
    """Return why the journal lacks what was written; None where it does not. `seen` is read before it is opened."""
    if seen is None:
        return None
    now = marks_of(db)
    lacking = [
        f"{was - is_} {what}"
        for what, was, is_ in (
            ("entries", seen.entry, now.entry),
            ("events", seen.event, now.event),
            ("epochs", seen.epoch, now.epoch),
        )
        if is_ < was
    ]
    if not lacking:
        return None
    log = " or its write-ahead log" if os.path.exists(f"{path}-wal") else ""
    return f"the last {' and '.join(lacking)} that were written are not in it: it{log} was changed or cut off"


class Witness:
    """Writes the file."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path + SUFFIX, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def write(self, marks: Marks) -> None:
        """Write how far the journal has come. Raises OSError."""
        text = f"{marks.epoch} {marks.entry} {marks.event} {_sum(marks)}"
        os.pwrite(self._file, text.encode().ljust(_BYTES - 1) + b"\n", 0)

    def close(self) -> None:
        """Close the file; a second time changes nothing."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _sum(marks: Marks) -> int:
    return zlib.crc32(repr(tuple(marks)).encode())
