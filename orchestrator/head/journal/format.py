"""The journal's format: its tables, its version, and the errors about a file that this program cannot use.

New fields in the state of a run need no new version, since they have defaults.
"""

from __future__ import annotations

import contextlib
import os
import resource
import sqlite3
from collections.abc import Callable

from orchestrator import __version__
from orchestrator.both import durable
from orchestrator.core.errors import JournalError
from orchestrator.core.words import size
from orchestrator.head.journal.values import checksum
from orchestrator.head.node.disk import full_error, is_full

VERSION = 6

RECORD = "record.db"
"""The file of an ended run that has left the journal; see `archive`."""

SCHEMA = (
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT",
    """CREATE TABLE runs (
        run_id TEXT PRIMARY KEY, name TEXT NOT NULL, created TEXT NOT NULL, ended TEXT,
        written_at REAL NOT NULL, state TEXT NOT NULL, ended_seq INTEGER, state_seq INTEGER, sum INTEGER NOT NULL
    ) STRICT""",
    """CREATE TABLE journal (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, time TEXT NOT NULL, run_id TEXT NOT NULL, type TEXT NOT NULL,
        event TEXT NOT NULL, changes BLOB, outcome TEXT, after BLOB, sum INTEGER NOT NULL
    ) STRICT""",
    """CREATE TABLE events (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, time TEXT NOT NULL, run_id TEXT NOT NULL, name TEXT NOT NULL,
        kind TEXT NOT NULL, task TEXT, generation INTEGER NOT NULL, message TEXT NOT NULL, data TEXT NOT NULL,
        decision INTEGER, sum INTEGER NOT NULL
    ) STRICT""",
    "CREATE INDEX events_by_name ON events (name, seq)",
    "CREATE INDEX events_by_run ON events (run_id, seq)",
    "CREATE INDEX journal_by_run ON journal (run_id, seq)",
)


def make(path: str, fill: Callable[[sqlite3.Connection], object]) -> None:
    """Make a file with our tables and what `fill` writes, whole or not at all. Raises sqlite3.Error, OSError."""
    making = path + ".new"
    # 0600 from the first byte on: the plan holds paths and host names.
    os.close(os.open(making, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600))
    with contextlib.closing(sqlite3.connect(making, isolation_level=None)) as db:
        db.execute("BEGIN")
        for statement in SCHEMA:
            db.execute(statement)
        fill(db)
        sign(db)
        db.execute("COMMIT")
    durable.place(making, path)


def damaged(path: str, why: str) -> JournalError:
    """Return the error that says that the file cannot be trusted."""
    directory, file = os.path.split(path)
    if file == RECORD:
        hint = f"`orch rm {os.path.basename(directory)} --here` removes the run; the others are not touched"
        return JournalError(f"the record {path} is damaged: {why}", hint=hint)
    return JournalError(
        f"the journal {path} is damaged: {why}",
        hint="`orch recover --hosts cluster.yaml` puts it aside and builds a new one from what the hosts know; "
        "tasks that run are not touched",
    )


def check_version(path: str, version: str, program: str | None) -> None:
    """Raise JournalError for a journal of another version than ours.

    Args:
        program: the version of orch that wrote it last; None if it does not say.
    """
    if version == str(VERSION):
        return
    writer = f"orch {program}" if program else "the orch that wrote it"
    raise JournalError(
        f"the journal {path} is of version {version}"
        + (f", written by orch {program}" if program else "")
        + f"; this is orch {__version__}, which reads version {VERSION}",
        hint=f"use {writer}; or `orch recover --hosts cluster.yaml` builds a new one from what the hosts know",
    )


def sign(db: sqlite3.Connection) -> None:
    """Write the version of orch, so that a program that cannot read the journal can name it, and a checksum."""
    db.execute("INSERT OR REPLACE INTO meta VALUES ('program', ?)", (__version__,))
    db.execute("INSERT OR REPLACE INTO meta VALUES ('sum', ?)", (str(_sum_of_meta(db)),))


def _sum_of_meta(db: sqlite3.Connection) -> int:
    return checksum(db.execute("SELECT key, value FROM meta WHERE key != 'sum' ORDER BY key").fetchall())


def check_meta(db: sqlite3.Connection, path: str) -> None:
    """Raise JournalError if the journal is of another version, or its `meta` table was changed."""
    program = db.execute("SELECT value FROM meta WHERE key = 'program'").fetchone()
    check_version(path, meta(db, path, "version"), program[0] if program else None)
    if meta(db, path, "sum") != str(_sum_of_meta(db)):
        raise damaged(path, "the checksum of its epoch and owner is wrong")


def meta(db: sqlite3.Connection, path: str, key: str) -> str:
    """Return a value of the `meta` table. Raises JournalError if there is none."""
    row = db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    if row is None:
        raise damaged(path, f"it has no {key}")
    return str(row[0])


def error_of(path: str, error: sqlite3.Error) -> JournalError:
    """Return the error for a person, with the cause and the way out."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR):
        return damaged(path, str(error))  # SQLITE_ERROR: no such table; our statements are right
    if code == sqlite3.SQLITE_FULL or (code == sqlite3.SQLITE_IOERR and is_full(path)):
        return full_error(path)
    bytes_max, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if code == sqlite3.SQLITE_IOERR and bytes_max != resource.RLIM_INFINITY:
        return JournalError(
            f"the journal {path} cannot be written: its process may write files of {size(bytes_max)} (`ulimit -f`)",
            hint="`orch coordinator restart` from a shell without that limit; training goes on meanwhile",
        )
    return JournalError(
        f"the journal {path} cannot be written: {error}",
        hint="see to its disk and its permissions; training goes on meanwhile",
    )
