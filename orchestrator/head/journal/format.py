"""The journal's format: its tables, the steps from one version to the next, and what is said of a file that is none.

A step is SQL that turns the tables of its version into those of the next; `migrated_state` in it turns a state into
the shape of today (`journal_migration`). Fields that the state of a run gains need none: they have defaults. Before the
first step the file is copied, so that an older program has a way back.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3

from orchestrator import __version__
from orchestrator.both import durable
from orchestrator.core.errors import JournalError
from orchestrator.head.journal.migration import migrated_text
from orchestrator.head.node.disk import full_error, is_full

VERSION = 4

SCHEMA = (
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT",
    """CREATE TABLE runs (
        run_id TEXT PRIMARY KEY, name TEXT NOT NULL, created TEXT NOT NULL, ended TEXT,
        written_at REAL NOT NULL, state TEXT NOT NULL, ended_seq INTEGER, state_seq INTEGER
    ) STRICT""",
    """CREATE TABLE journal (
        seq INTEGER PRIMARY KEY, time TEXT NOT NULL, run_id TEXT NOT NULL, type TEXT NOT NULL, event TEXT NOT NULL,
        changes BLOB, outcome TEXT, after BLOB
    ) STRICT""",
    """CREATE TABLE events (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, time TEXT NOT NULL, run_id TEXT NOT NULL, name TEXT NOT NULL,
        kind TEXT NOT NULL, task TEXT, generation INTEGER NOT NULL, message TEXT NOT NULL, data TEXT NOT NULL
    ) STRICT""",
    "CREATE INDEX events_by_name ON events (name, seq)",
    "CREATE INDEX events_by_run ON events (run_id, seq)",
    "CREATE INDEX journal_by_run ON journal (run_id, seq)",
)

STEPS: dict[int, tuple[str, ...]] = {
    1: (
        # Which runs ended last was told by the wall clock, which may jump; now by the sequence.
        "ALTER TABLE runs ADD COLUMN ended_seq INTEGER",
        "UPDATE runs SET ended_seq = (SELECT max(seq) FROM journal WHERE journal.run_id = runs.run_id) "
        "WHERE ended IS NOT NULL",
        "CREATE INDEX events_by_run ON events (run_id, seq)",
    ),
    2: (
        # An entry can be replayed: with what had changed since the one before it, and what was decided.
        "ALTER TABLE journal ADD COLUMN changes BLOB",
        "ALTER TABLE journal ADD COLUMN outcome TEXT",
        "UPDATE runs SET state = migrated_state(state)",
    ),
    3: (
        # The state of a run is written whole now and then; what follows is in its entries.
        "ALTER TABLE runs ADD COLUMN state_seq INTEGER",
        "ALTER TABLE journal ADD COLUMN after BLOB",
    ),
}
"""The steps, by the version that they start from."""


def damaged(path: str, why: str) -> JournalError:
    """Return the error that says that the file cannot be trusted."""
    return JournalError(
        f"the journal {path} is damaged: {why}",
        hint="`orch recover --hosts cluster.yaml` puts it aside and builds a new one from what the hosts know; "
        "tasks that run are not touched",
    )


def check_version(path: str, version: str, program: str | None) -> int:
    """Return the journal's version where this program reads it, perhaps after a migration. JournalError for any other.

    Args:
        program: the version of orch that wrote it last; None where it does not say.
    """
    number = int(version) if version.isdecimal() else 0
    if number == VERSION or number in STEPS:
        return number
    writer = f"orch {program}" if program else "the orch that wrote it"
    way_back = (
        f"use {writer}; or `orch recover --hosts cluster.yaml` builds a new one from what the hosts know"
    )
    backup = backup_path(path, number)
    if number > VERSION and os.path.exists(backup):
        way_back = f"use {writer}; what there was before its migration is in {backup}"
    raise JournalError(
        f"the journal {path} is of version {version}"
        + (f", written by orch {program}" if program else "")
        + f"; this is orch {__version__}, which reads version {min(STEPS)} to {VERSION}",
        hint=way_back,
    )


def backup_path(path: str, version: int) -> str:
    """Where the journal lies as it was before it became of that version."""
    return f"{path}.before-v{version}"


def back_up(db: sqlite3.Connection, path: str) -> str:
    """Copy the journal, with its write-ahead log, to a file beside it and return that path. OSError, sqlite3.Error."""
    target = backup_path(path, VERSION)
    making = target + ".new"
    os.close(os.open(making, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600))
    try:
        with contextlib.closing(sqlite3.connect(making)) as copy:
            db.backup(copy)
        with open(making, "rb") as file:
            os.fsync(file.fileno())
        durable.place(making, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(making)
        raise
    return target


def migrate(db: sqlite3.Connection, version: int) -> None:
    """All steps from that version to ours; within the caller's transaction, so all or none."""
    db.create_function("migrated_state", 1, migrated_text, deterministic=True)
    for step in range(version, VERSION):
        for statement in STEPS[step]:
            db.execute(statement)
    db.execute("UPDATE meta SET value = ? WHERE key = 'version'", (str(VERSION),))


def sign(db: sqlite3.Connection) -> None:
    """Leave our name, so that a program which cannot read it can say whose it is."""
    db.execute("INSERT OR REPLACE INTO meta VALUES ('program', ?)", (__version__,))


def version_of(db: sqlite3.Connection, path: str) -> int:
    """Return the journal's version; see `check_version`."""
    program = db.execute("SELECT value FROM meta WHERE key = 'program'").fetchone()
    return check_version(path, meta(db, path, "version"), program[0] if program else None)


def meta(db: sqlite3.Connection, path: str, key: str) -> str:
    """Return what the journal says of itself under this key. JournalError where it says nothing."""
    row = db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    if row is None:
        raise damaged(path, f"it has no {key}")
    return str(row[0])


def error_of(path: str, error: sqlite3.Error) -> JournalError:
    """Return what a person must know of this error."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR):
        return damaged(path, str(error))  # SQLITE_ERROR: no such table; our statements are right
    if code == sqlite3.SQLITE_FULL or (code == sqlite3.SQLITE_IOERR and is_full(path)):
        return full_error(path)
    return JournalError(
        f"the journal {path} cannot be written: {error}",
        hint="see to its disk and its permissions; training goes on meanwhile",
    )
