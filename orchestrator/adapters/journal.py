"""The journal: what was decided and what happened, in SQLite, so that a coordinator may die at any moment.

One transaction holds the event, the state that followed from it, and the notes; only then is anything done about
it. Instants of the monotonic clock are kept with the instant of the writing, so that a later coordinator can move
them (`group.rebased`). One writer; readers open the file read-only.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import TypeAdapter, ValidationError

from orchestrator.adapters.disk import NO_SPACE, full_error, is_full, sync_directory
from orchestrator.core.actions import Note
from orchestrator.core.errors import JournalError
from orchestrator.core.events import Event
from orchestrator.core.model import Run

VERSION = 1

_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE runs (
    run_id TEXT PRIMARY KEY, name TEXT NOT NULL, created TEXT NOT NULL, ended TEXT,
    written_at REAL NOT NULL, state TEXT NOT NULL
) STRICT;
CREATE TABLE journal (
    seq INTEGER PRIMARY KEY, time TEXT NOT NULL, run_id TEXT NOT NULL, type TEXT NOT NULL, event TEXT NOT NULL
) STRICT;
CREATE TABLE events (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, time TEXT NOT NULL, run_id TEXT NOT NULL, name TEXT NOT NULL,
    kind TEXT NOT NULL, task TEXT, generation INTEGER NOT NULL, message TEXT NOT NULL, data TEXT NOT NULL
) STRICT;
CREATE INDEX events_by_name ON events (name, seq);
CREATE INDEX journal_by_run ON journal (run_id, seq);
"""


@dataclass(frozen=True, slots=True)
class Kept:
    """A run as the journal holds it."""

    run: Run
    created: str
    ended: str | None
    written_at: float
    """The monotonic instant at which the state was written, by the clock of its writer."""


class Journal:
    """Open for writing. Raises JournalError with the file and the way back where it cannot be trusted."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            if not os.path.exists(path):
                self._create()
            if os.stat(path).st_size == 0:  # SQLite would take it for a new one, and all runs be forgotten
                raise self._damaged("it is empty")
            self._db = _connect(path)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._check()
        except sqlite3.Error as e:
            raise self._error(e) from e
        except OSError as e:
            raise full_error(path) if e.errno in NO_SPACE else _unusable(path, e) from e

    def _create(self) -> None:
        """Whole or not at all: made beside its place, and renamed."""
        if os.path.exists(self.path + "-wal"):
            raise self._damaged("it is gone, and its -wal file is there, which belongs to no other")
        making = self.path + ".new"
        # 0600 from the first byte on: the plan holds paths and host names.
        os.close(os.open(making, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600))
        db = _connect(making)
        try:
            with _Transaction(db, self._error):
                for statement in _SCHEMA.split(";"):
                    db.execute(statement)
                db.execute("INSERT INTO meta VALUES ('version', ?), ('epoch', '0')", (str(VERSION),))
        finally:
            db.close()
        os.rename(making, self.path)
        sync_directory(os.path.dirname(self.path))

    def _check(self) -> None:
        result = self._db.execute("PRAGMA quick_check(1)").fetchone()[0]
        if result != "ok":
            raise self._damaged(result)
        version = self._meta("version")
        if version != str(VERSION):
            raise JournalError(
                f"the journal {self.path} is of version {version}, and this program reads version {VERSION}",
                hint="use the orch that wrote it, or move the file away to start with an empty journal",
            )

    def _error(self, error: sqlite3.Error) -> JournalError:
        """What a person must know of it."""
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR):
            return self._damaged(str(error))  # SQLITE_ERROR: no such table; our statements are right
        if code == sqlite3.SQLITE_FULL or (code == sqlite3.SQLITE_IOERR and is_full(self.path)):
            return full_error(self.path)
        return JournalError(
            f"the journal {self.path} cannot be written: {error}",
            hint="see to its disk and its permissions; training goes on meanwhile",
        )

    def _damaged(self, why: str) -> JournalError:
        return JournalError(
            f"the journal {self.path} is damaged: {why}",
            hint=f"move {self.path} and its -wal and -shm files away and start again: tasks that run are "
            "not touched, and must then be ended by hand",
        )

    def _meta(self, key: str) -> str:
        row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        if row is None:
            raise self._damaged(f"it has no {key}")
        return str(row[0])

    def _transaction(self) -> _Transaction:
        return _Transaction(self._db, self._error)

    def close(self) -> None:
        """Fold the write-ahead log back and close."""
        self._db.close()

    # -- writing -------------------------------------------------------------------------------------------

    def take_epoch(self) -> int:
        """Begin an epoch: durable before it is returned, so that two coordinators never share one."""
        with self._transaction():
            epoch = int(self._meta("epoch")) + 1
            self._db.execute("UPDATE meta SET value = ? WHERE key = 'epoch'", (str(epoch),))
        return epoch

    def commit(self, run: Run, event: Event, notes: Sequence[Note]) -> None:
        """Event, state and notes, all or none. A run's first event brings the run itself into the journal."""
        time = now_utc()
        ended = time if run.phase.is_terminal else None
        with self._transaction():
            self._db.execute(
                "INSERT INTO journal (time, run_id, type, event) VALUES (?, ?, ?, ?)",
                (time, run.run_id, type(event).__name__, _dump(type(event), event)),
            )
            self._db.execute(
                "INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (run_id) DO UPDATE SET "
                "state = excluded.state, written_at = excluded.written_at, ended = coalesce(ended, excluded.ended)",
                (run.run_id, run.plan.name, time, ended, event.at, _dump(Run, run)),
            )
            self._db.executemany(
                "INSERT INTO events (time, run_id, name, kind, task, generation, message, data) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                [_row(time, run, note) for note in notes],
            )

    # -- reading -------------------------------------------------------------------------------------------

    def runs(self, *, ended_max: int = 50) -> list[Kept]:
        """All runs that have not ended, and the newest that have; oldest first."""
        rows = self._read(
            "SELECT run_id, state, created, ended, written_at FROM runs WHERE ended IS NULL OR run_id IN "
            "(SELECT run_id FROM runs WHERE ended IS NOT NULL ORDER BY ended DESC, rowid DESC LIMIT ?) "
            "ORDER BY rowid",
            (ended_max,),
        )
        return [Kept(self._load(run_id, state), *rest) for run_id, state, *rest in rows]

    def _load(self, run_id: str, state: str) -> Run:
        try:
            return _adapter(Run).validate_json(state)  # type: ignore[no-any-return]
        except ValidationError as e:
            found = e.errors()[0]
            where = ".".join(map(str, found["loc"]))
            raise self._damaged(f"the state of {run_id} cannot be read: {where}: {found['msg']}") from e

    def _read(self, query: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        try:
            return self._db.execute(query, values).fetchall()
        except sqlite3.Error as e:
            raise self._error(e) from e

    def next_run_id(self, name: str) -> str:
        """`mnist-20261120-093005`: the name, and the date and time (UTC) of the submission.

        A count would begin again with every journal, and the hosts remember the runs of all journals: a new head
        node's first run must not find the records of another's.
        """
        at = datetime.now(UTC)
        while True:
            run_id = f"{name}-{at:%Y%m%d-%H%M%S}"
            if not self._read("SELECT 1 FROM runs WHERE run_id = ?", (run_id,)):
                return run_id
            at += timedelta(seconds=1)

    def events(self, *, name: str | None = None, after: int = 0, limit: int = 1000) -> list[dict[str, Any]]:
        """What `orch events` shows: of one run (by its name or id) or of all, in order."""
        rows = self._read(
            "SELECT seq, time, run_id, kind, task, generation, message, data FROM events "
            "WHERE seq > ? AND (? IS NULL OR name = ? OR run_id = ?) ORDER BY seq LIMIT ?",
            (after, name, name, name, limit),
        )
        keys = ("seq", "time", "run", "kind", "task", "generation", "message")
        return [{**dict(zip(keys, row[:7], strict=True)), "data": json.loads(row[7])} for row in rows]

    def history(self, run_id: str) -> list[tuple[str, Any]]:
        """The run's journaled events, in order: (type, JSON)."""
        rows = self._read("SELECT type, event FROM journal WHERE run_id = ? ORDER BY seq", (run_id,))
        return [(type_, json.loads(event)) for type_, event in rows]


class _Transaction:
    """BEGIN IMMEDIATE … COMMIT, or ROLLBACK. `with connection:` of sqlite3 would not begin one here.

    What SQLite complains of comes out as JournalError.
    """

    def __init__(self, db: sqlite3.Connection, told: Callable[[sqlite3.Error], JournalError]) -> None:
        self._db = db
        self._told = told

    def __enter__(self) -> None:
        try:
            self._db.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as e:
            raise self._told(e) from e

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            try:
                self._db.execute("COMMIT")
                return
            except sqlite3.Error as e:
                self._rollback()
                raise self._told(e) from e
        self._rollback()
        if isinstance(error, sqlite3.Error):
            raise self._told(error) from error

    def _rollback(self) -> None:
        if self._db.in_transaction:  # a full disk may have rolled back already
            self._db.execute("ROLLBACK")


def _connect(path: str) -> sqlite3.Connection:
    return sqlite3.connect(path, isolation_level=None, check_same_thread=False)


def _unusable(path: str, error: OSError) -> JournalError:
    return JournalError(
        f"the journal {path} cannot be opened: {error.strerror}",
        hint="see to the permissions of its directory, or set $ORCH_STATE_DIR to another",
    )


def now_utc() -> str:
    """ISO 8601 in UTC, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _row(time: str, run: Run, note: Note) -> tuple[object, ...]:
    task = str(note.task) if note.task else None
    data = json.dumps(dict(note.data), default=str)
    return (time, run.run_id, run.plan.name, note.kind, task, run.generation, note.message, data)


_ADAPTERS: dict[type[Any], TypeAdapter[Any]] = {}


def _adapter(type_: type[Any]) -> TypeAdapter[Any]:
    """Made once a type: pydantic reads all of its fields for it."""
    if type_ not in _ADAPTERS:
        _ADAPTERS[type_] = TypeAdapter(type_)
    return _ADAPTERS[type_]


def _dump(type_: type[Any], value: object) -> str:
    return _adapter(type_).dump_json(value).decode()
