"""Read a journal that a coordinator may be writing: its runs, and the entries of one. Nothing is changed."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from dataclasses import replace
from urllib.parse import quote

from orchestrator.core.errors import UsageError
from orchestrator.head.journal import witness
from orchestrator.head.journal.entries import ROWS, Entry, entry_of
from orchestrator.head.journal.format import check_meta, damaged, error_of
from orchestrator.head.journal.states import COLUMNS, SINCE, Contents, contents_of


def peek(path: str) -> Contents:
    """Return every run of a journal that a coordinator may be writing; none where there is no journal.

    Changes nothing. Raises JournalError if this program cannot read it, or is too old for it.
    """
    if not os.path.exists(path):
        return Contents()
    seen = witness.read(path)
    try:
        with contextlib.closing(sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True)) as db:
            check_meta(db, path)
            behind = witness.why_behind(path, db, seen)
            if behind is not None:
                raise damaged(path, behind)
            rows = db.execute(f"SELECT {COLUMNS} FROM runs ORDER BY rowid").fetchall()
            known = contents_of(rows, lambda *arguments: db.execute(SINCE, arguments).fetchall())
            owner = db.execute("SELECT value FROM meta WHERE key = 'owner'").fetchone()
    except sqlite3.Error as e:
        raise error_of(path, e) from e
    return replace(known, owner_id=str(owner[0]) if owner else "")


def read_entries(path: str, name: str) -> tuple[str, list[Entry]]:
    """Return the id and the entries of the run with that id, or of the newest with that name.

    Changes nothing, as `peek`. Raises UsageError if there is no such run.
    """
    if not os.path.exists(path):
        raise UsageError(f"there is no journal: {path}")
    try:
        with contextlib.closing(sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True)) as db:
            check_meta(db, path)
            known = db.execute("SELECT run_id, name FROM runs ORDER BY rowid").fetchall()
            run_ids = [run_id for run_id, run_name in known if name in (run_id, run_name)]
            if not run_ids:
                names = ", ".join(dict.fromkeys(run_name for _, run_name in known))
                raise UsageError(
                    f"the journal has no run {name!r}", hint=f"it has: {names}" if names else None
                )
            return run_ids[-1], [entry_of(row) for row in db.execute(ROWS, (run_ids[-1],))]
    except sqlite3.Error as e:
        raise error_of(path, e) from e
