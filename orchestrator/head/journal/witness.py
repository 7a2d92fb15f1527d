"""A small file beside the journal with the highest numbers in it, written after each transaction.

SQLite reads a write-ahead log up to its first damaged frame, and ignores what follows without an error: after one
flipped bit, the newest runs would be missing. So a program that opens the journal compares it with this file. The file
is not synced. It is written after the transaction is on the disk, so after a power cut it may be older than the
journal, never newer.
"""

from __future__ import annotations

import os
import sqlite3
import zlib
from typing import NamedTuple

from orchestrator.core.errors import JournalError

SUFFIX = ".seen"

_BYTES = 64


class Marks(NamedTuple):
    """The highest numbers that the journal has used."""

    epoch: int
    entry: int
    event: int


def marks_of(db: sqlite3.Connection) -> Marks:
    """Return the highest numbers of a journal. The numbers of rows that were removed since count too."""
    numbers = dict(db.execute("SELECT name, seq FROM sqlite_sequence").fetchall())
    (epoch,) = db.execute("SELECT value FROM meta WHERE key = 'epoch'").fetchone()
    return Marks(int(epoch), numbers.get("journal", 0), numbers.get("events", 0))


def read(path: str) -> Marks | None:
    """Return the content of the file beside the journal; None if there is none, or a power cut has emptied it.

    Raises JournalError if both of its copies are damaged: then it is unknown whether the journal is whole.
    """
    try:
        with open(path + SUFFIX, "rb") as file:
            content = file.read()
    except OSError:
        return None
    copies = [marks for marks in map(_marks_in, content.splitlines()) if marks is not None]
    if not copies and content.strip(b"\0 \n"):
        raise JournalError(
            f"{path}{SUFFIX}, which shows whether the journal is whole, is damaged: entries may be missing",
            hint="`orch recover --hosts cluster.yaml` puts it aside and builds a new one from what the hosts know; "
            "if nothing else is damaged, remove that file",
        )
    return max(copies, default=None)


def _marks_in(line: bytes) -> Marks | None:
    try:
        *numbers, total = map(int, line.split())
        marks = Marks(*numbers)
    except (ValueError, TypeError):
        return None
    return marks if total == _sum(marks) else None


def why_behind(path: str, db: sqlite3.Connection, seen: Marks | None) -> str | None:
    """Return what is missing in the journal; None if it is whole. `seen` was read before the journal was opened."""
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
        """Write the numbers twice, since damage to one copy seldom damages the other. Raises OSError."""
        text = f"{marks.epoch} {marks.entry} {marks.event} {_sum(marks)}"
        os.pwrite(self._file, 2 * (text.encode().ljust(_BYTES - 1) + b"\n"), 0)

    def close(self) -> None:
        """Close the file; a second time changes nothing."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _sum(marks: Marks) -> int:
    return zlib.crc32(repr(tuple(marks)).encode())
