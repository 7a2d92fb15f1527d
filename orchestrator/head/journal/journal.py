"""The journal: the events and decisions of all runs, in SQLite, so that a coordinator may die at any moment.

One transaction holds the events of a turn, the changes that they made to the state, and the notes. Actions are carried
out after it. The whole state is written at the first entry of a process, at the end of the run, and once the changes
since then are as large as the state, so the size of an entry does not grow with the number of hosts. Instants of the
monotonic clock are kept with the instant of the writing, so that a later coordinator can move them
(`instants.rebased`). There is one writer; readers open the file read-only.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from orchestrator.both import durable
from orchestrator.core.actions import Note
from orchestrator.core.errors import JournalError
from orchestrator.core.events import Event
from orchestrator.core.notes import NoteKind
from orchestrator.core.phases.stopping import unproven
from orchestrator.core.state.run import Run
from orchestrator.head.journal import archive, happened, witness
from orchestrator.head.journal import format as journal_format
from orchestrator.head.journal.changes import changes
from orchestrator.head.journal.entries import ROWS, Entry, Outcome, entry_of
from orchestrator.head.journal.format import VERSION, damaged, error_of, meta
from orchestrator.head.journal.states import COLUMNS, SINCE, Contents, Kept, Unreadable, contents_of
from orchestrator.head.journal.values import checksum, dump
from orchestrator.head.node.disk import NO_SPACE, full_error

log = logging.getLogger(__name__)

ENDED_MAX = 50
"""How many ended runs the journal holds. Older ones have files of their own; see `archive`.

All runs that go on are here too, and ended ones while it is not proven that their tasks on each host are dead.
"""

_ALL = f"SELECT {COLUMNS} FROM runs ORDER BY rowid"
_INSERT_EVENT = (
    "INSERT INTO events (time, run_id, name, kind, task, generation, message, data, decision, sum) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_NEWEST_ENDED = "SELECT run_id FROM runs WHERE ended IS NOT NULL ORDER BY ended_seq DESC, rowid DESC LIMIT ?"


class _Written(NamedTuple):
    """What this process has written of a run."""

    run: Run
    state_bytes: int
    """The size of the last state that was written whole."""
    log_bytes: int
    """The size of the changes of the state in the entries since then."""


class Journal:
    """The journal, open for writing. Raises JournalError, with the way out, where the file cannot be trusted."""

    def __init__(self, path: str, *, clock: Callable[[], str] | None = None) -> None:
        """`clock` gives the time of a record, for people. No decision depends on it."""
        self.path = path
        self._clock = clock or now_utc
        self._last: dict[str, _Written] = {}
        """What this process last wrote of each run."""
        self._together: contextlib.ExitStack | None = None
        """What ends the transaction that several commits share; None if each has its own."""
        self._has_begun = False
        try:
            seen = witness.read(path)
            if not os.path.exists(path):
                self._create(seen)
            # SQLite would take the file for a new journal, and all runs would be forgotten
            if os.stat(path).st_size == 0:
                raise damaged(path, "it is empty")
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            result = self._db.execute("PRAGMA integrity_check(1)").fetchone()[0]
            if result != "ok":
                raise damaged(self.path, result)
            journal_format.check_meta(self._db, self.path)
            behind = witness.why_behind(self.path, self._db, seen)
            if behind is not None:
                raise damaged(self.path, behind)
            self._witness = witness.Witness(path)
            self._write_witness()
        except sqlite3.Error as e:
            raise error_of(path, e) from e
        except UnicodeDecodeError as e:  # SQLite's own complaint about a damaged schema quotes it
            raise damaged(path, str(e)) from e
        except OSError as e:
            raise full_error(path) if e.errno in NO_SPACE else _unusable(path, e) from e

    def _create(self, seen: witness.Marks | None) -> None:
        """Make the file whole or not at all: under another name, and renamed."""
        if os.path.exists(self.path + "-wal"):
            raise damaged(self.path, "it is gone, but its -wal file is still there")
        if seen is not None:
            raise damaged(self.path, f"it is gone, but {seen.entry} entries were written into it")
        first = "INSERT INTO meta VALUES ('version', ?), ('epoch', '0')"
        journal_format.make(self.path, lambda db: db.execute(first, (str(VERSION),)))

    def _write_witness(self) -> None:
        try:
            self._witness.write(witness.marks_of(self._db))
        except OSError as e:  # a full disk: the journal has what was committed
            log.warning("%s%s cannot be written: %s", self.path, witness.SUFFIX, e)

    def _error(self, error: sqlite3.Error) -> JournalError:
        return error_of(self.path, error)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """BEGIN IMMEDIATE … COMMIT, or ROLLBACK. `with connection:` of sqlite3 would not begin one here.

        SQLite's errors become JournalErrors.
        """
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:  # a full disk may have rolled back already
                    self._db.execute("ROLLBACK")
                raise
        except sqlite3.Error as e:
            raise self._error(e) from e
        self._write_witness()

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Put all commits within the block into one transaction. If that fails, none is done: JournalError."""
        written = dict(self._last)
        try:
            with contextlib.ExitStack() as transaction:
                self._together = transaction
                yield
        except BaseException:
            self._last = written
            raise
        finally:
            self._together = None
            self._has_begun = False

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Make a commit in a transaction of its own, or as a part of the one that `together` shares."""
        if self._together is None:
            with self._transaction():
                yield
            return
        if not self._has_begun:  # most turns write nothing
            self._together.enter_context(self._transaction())
            self._has_begun = True
        try:
            if not self._db.in_transaction:  # a full disk has rolled back all that was before
                raise sqlite3.OperationalError("the transaction was rolled back")
            yield
        except sqlite3.Error as e:
            raise self._error(e) from e

    def close(self) -> None:
        """Fold the write-ahead log back and close."""
        self._db.close()
        self._witness.close()

    # -- writing -------------------------------------------------------------------------------------------

    def take_epoch(self) -> int:
        """Begin an epoch: durable before it is returned, so that two coordinators never share one."""
        with self._transaction():
            epoch = int(meta(self._db, self.path, "epoch")) + 1
            self._db.execute("UPDATE meta SET value = ? WHERE key = 'epoch'", (str(epoch),))
            journal_format.sign(self._db)
        return epoch

    def owner_id(self) -> str:
        """Return the id by which hosts know the owner of these runs. It is random, and lost with the journal."""
        with self._transaction():
            self._db.execute("INSERT OR IGNORE INTO meta VALUES ('owner', ?)", (os.urandom(16).hex(),))
            journal_format.sign(self._db)
        return meta(self._db, self.path, "owner")

    def raise_epoch(self, at_least: int) -> None:
        """Make sure that the next epoch that is taken is above this one."""
        with self._transaction():
            epoch = max(at_least, int(meta(self._db, self.path, "epoch")))
            self._db.execute("UPDATE meta SET value = ? WHERE key = 'epoch'", (str(epoch),))
            journal_format.sign(self._db)

    def commit(
        self,
        run: Run,
        event: Event,
        notes: Sequence[Note],
        *,
        before: Run | None = None,
        outcome: Outcome | None = None,
    ) -> int:
        """Write event, state and notes, all or none. The first event of a run adds the run to the journal.

        Returns the number of the entry, by which `orch events` and `orch replay` name the decision.

        Args:
            before: the state before the event, and `outcome`: what the core decided. Both are for a replay. Without
                them, a replay takes the state as it is written here.
        """
        time = self._clock()
        last = self._last.get(run.run_id)
        grown = before is not None and last is not None and last.log_bytes < last.state_bytes
        in_between = changes(last.run if last else None, before) if before is not None else changes(None, run)
        after = changes(before, run) if grown and not run.phase.is_terminal else None
        is_whole = not grown or run.phase.is_terminal
        with self._writing():
            entry = (
                time,
                run.run_id,
                type(event).__name__,
                dump(type(event), event),
                in_between,
                outcome.to_json() if outcome is not None else None,
                after,
            )
            inserted = self._db.execute(
                "INSERT INTO journal (time, run_id, type, event, changes, outcome, after, sum) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (*entry, checksum(entry)),
            )
            seq = inserted.lastrowid or 0
            state_bytes = self._put_state(run, event, time, seq) if is_whole else 0
            rows = []
            for note in notes:
                task, data = str(note.task) if note.task else None, json.dumps(dict(note.data), default=str)
                whose = (time, run.run_id, run.plan.name, note.kind.value, task, run.generation)
                rows.append(_summed((*whose, note.message, data, seq)))
            self._db.executemany(_INSERT_EVENT, rows)
        if last is None or is_whole:
            self._last[run.run_id] = _Written(run, state_bytes, 0)
        else:
            grown_bytes = len(in_between or b"") + len(after or b"")
            self._last[run.run_id] = _Written(run, last.state_bytes, last.log_bytes + grown_bytes)
        return seq

    def _put_state(self, run: Run, event: Event, time: str, seq: int | None) -> int:
        """Write the whole state, and return its size. Later entries hold only changes of it."""
        state = dump(Run, run)
        known = self._db.execute("SELECT created, ended, ended_seq FROM runs WHERE run_id = ?", (run.run_id,))
        created, ended, ended_seq = known.fetchone() or (time, None, None)
        if run.phase.is_terminal and ended is None:
            ended, ended_seq = time, seq
        row = (run.run_id, run.plan.name, created, ended, float(event.at), state, ended_seq, seq)
        self._db.execute(
            f"INSERT INTO runs ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (run_id) DO UPDATE SET "
            "state = excluded.state, state_seq = excluded.state_seq, written_at = excluded.written_at, "
            "ended = excluded.ended, ended_seq = excluded.ended_seq, sum = excluded.sum",
            (*row, checksum(row)),
        )
        return len(state)

    def note_set_aside(self, lost: Unreadable) -> None:
        """Add an event that a run was set aside. The run's state is left as it is."""
        note = (NoteKind.RUN_SET_ASIDE.value, None, 0, lost.sentence, json.dumps({"why": lost.why}))
        with self._transaction():
            self._db.execute(_INSERT_EVENT, _summed((self._clock(), lost.run_id, lost.name, *note, None)))

    def write_off(self, run_id: str) -> None:
        """Mark a run as ended that cannot be read, and that has no living process. Its state is left as it is."""
        with self._transaction():
            (row,) = self._db.execute(f"SELECT {COLUMNS} FROM runs WHERE run_id = ?", (run_id,))
            ended = (*row[:3], self._clock(), *row[4:-1])
            # A damaged row stays damaged.
            total = checksum(ended) if checksum(row[:-1]) == row[-1] else row[-1]
            self._db.execute("UPDATE runs SET ended = ?, sum = ? WHERE run_id = ?", (ended[3], total, run_id))

    def put_away(self, run_dir: Callable[[str], str], *, ended_max: int = ENDED_MAX) -> list[str]:
        """Move the runs that ended before the newest `ended_max` into files of their own, and return their ids.

        A run stays here while its end is unproven, since its host is swept when it is back, or while it cannot be read.
        """
        rows = self.read(
            f"SELECT {COLUMNS} FROM runs WHERE ended IS NOT NULL AND run_id NOT IN ({_NEWEST_ENDED})",
            (ended_max,),
        )
        old = [kept.run.run_id for kept in contents_of(rows, self._since).kept if not unproven(kept.run)]
        for index, run_id in enumerate(
            old
        ):  # one at a time, so that another writer need not wait for all of them
            try:
                archive.write(self._db, run_id, run_dir(run_id))
            except (OSError, sqlite3.Error) as e:
                log.warning("%s stays in the journal for now: its own file cannot be written: %s", run_id, e)
                return old[:index]
            self.forget(run_id)
        return old

    def forget(self, run_id: str) -> None:
        """Remove a run with its events and entries."""
        with self._transaction():
            for table in archive.TABLES:
                self._db.execute(f"DELETE FROM {table} WHERE run_id = ?", (run_id,))
        self._last.pop(run_id, None)

    # -- reading -------------------------------------------------------------------------------------------

    def runs(self, *, ended_max: int = ENDED_MAX) -> list[Kept]:
        """Return all runs that have not ended, or whose end is unproven, and the newest others; oldest first."""
        newest = {run_id for (run_id,) in self.read(_NEWEST_ENDED, (ended_max,))}
        kept = self.contents().kept
        return [run for run in kept if run.ended is None or run.run.run_id in newest or unproven(run.run)]

    def contents(self) -> Contents:
        """Return every run, and those that cannot be read."""
        return contents_of(self.read(_ALL, ()), self._since)

    def _since(self, run_id: str, seq: int | None) -> list[tuple[Any, ...]]:
        return self.read(SINCE, (run_id, seq))

    def read(self, query: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        """Return the rows of a query. Raises JournalError."""
        try:
            return self._db.execute(query, values).fetchall()
        except sqlite3.Error as e:
            raise self._error(e) from e

    def next_run_id(self, name: str) -> str:
        """Return an id such as `mnist-20261120-093005`: the name, and the date and time (UTC) of the submission.

        Hosts remember the runs of all journals. With a count, which begins again in every journal, the first run of a
        new head node would meet the records of another's.
        """
        at = datetime.now(UTC)
        while True:
            run_id = f"{name}-{at:%Y%m%d-%H%M%S}"
            if not self.read("SELECT 1 FROM runs WHERE run_id = ?", (run_id,)):
                return run_id
            at += timedelta(seconds=1)

    def events(self, *, name: str | None = None, after: int = 0, limit: int = 1000) -> list[dict[str, Any]]:
        """Return what `orch events` shows, in order: the events of one run (by its name or id), or of all."""
        return happened.events(self.read, name=name, after=after, limit=limit)

    def first_causes(self, run_id: str) -> list[dict[str, Any]]:
        """Return what ended the run's generations and its individually restarted tasks, oldest first."""
        return happened.first_causes(self.read, run_id)

    def entries(self, run_id: str) -> list[Entry]:
        """Return the run's entries, in order."""
        return [entry_of(row) for row in self.read(ROWS, (run_id,))]


def put_aside(path: str) -> str | None:
    """Rename a journal and its other files, and return its new path; None if there is none. Raises OSError."""
    target = f"{path}.aside-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    moved = None
    # The log is moved last: a journal without its log is whole but old; a log without its journal is refused.
    for suffix in ("", "-shm", "-wal", witness.SUFFIX):
        if os.path.exists(path + suffix):
            durable.place(path + suffix, target + suffix)
            moved = target
    return moved


def _unusable(path: str, error: OSError) -> JournalError:
    return JournalError(
        f"the journal {path} cannot be opened: {error.strerror}",
        hint="see to the permissions of its directory, or set $ORCH_STATE_DIR to another",
    )


def now_utc() -> str:
    """Return the time as ISO 8601 in UTC, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _summed(row: tuple[object, ...]) -> tuple[object, ...]:
    return (*row, checksum(row))
