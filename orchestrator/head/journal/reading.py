"""Read a journal that a coordinator may be writing, or the file of an ended run. Nothing is changed."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import quote

from orchestrator.core.errors import JournalError, UsageError
from orchestrator.head.journal import archive, witness
from orchestrator.head.journal.entries import ROWS, Entry, entry_of
from orchestrator.head.journal.format import check_meta, damaged, error_of
from orchestrator.head.journal.states import COLUMNS, SINCE, Contents, Kept, Unreadable, contents_of

if TYPE_CHECKING:
    from orchestrator.head.node.paths import Paths


@contextlib.contextmanager
def opened(path: str) -> Iterator[sqlite3.Connection]:
    """Open the file to read it. Raises JournalError if this program cannot read it, or is too old for it."""
    seen = witness.read(path)
    try:
        with contextlib.closing(sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True)) as db:
            check_meta(db, path)
            behind = witness.why_behind(path, db, seen)
            if behind is not None:
                raise damaged(path, behind)
            yield db
    except sqlite3.Error as e:
        raise error_of(path, e) from e


def read_runs(path: str) -> Contents:
    """Return every run of a journal; none where there is no journal. Raises JournalError, as `opened`."""
    if not os.path.exists(path):
        return Contents()
    with opened(path) as db:
        rows = db.execute(f"SELECT {COLUMNS} FROM runs ORDER BY rowid").fetchall()
        known = contents_of(rows, lambda *arguments: db.execute(SINCE, arguments).fetchall())
        owner = db.execute("SELECT value FROM meta WHERE key = 'owner'").fetchone()
    return replace(known, owner_id=str(owner[0]) if owner else "")


def archived(paths: Paths, name: str) -> Kept | None:
    """Return the run with this id, or the newest of this name, that has left the journal; None for none.

    Its instants are not moved: they lie before `written_at`, which was at `ended`.
    """
    run_id = archive.find(paths, name)
    return _own(paths, run_id) if run_id is not None else None


def _own(paths: Paths, run_id: str) -> Kept:
    contents = read_runs(archive.place_of(paths, run_id))
    if not contents.kept:
        raise damaged(archive.place_of(paths, run_id), "; ".join(run.why for run in contents.unreadable))
    return contents.kept[0]


def everything(
    paths: Paths,
    name: str | None,
    unread: Callable[[str, JournalError], None],
    aside: Callable[[Unreadable], None] = lambda _: None,
) -> list[Kept]:
    """Return all runs, those of a name, or the one with an id, oldest first, whether they have left the journal or not.

    Args:
        unread: is told of a run whose own file cannot be read.
        aside: is told of a run in the journal whose state cannot be read.
    """
    contents = read_runs(paths.journal)
    for entry in contents.unreadable:
        if name in (None, entry.run_id, entry.name):
            aside(entry)
    runs = [kept for kept in contents.kept if name in (None, kept.run.run_id, kept.run.plan.name)]
    known = {kept.run.run_id for kept in runs}
    for run_id in archive.run_ids(paths, name):
        try:
            runs += [_own(paths, run_id)] if run_id not in known else []
        except JournalError as e:
            unread(run_id, e)
    return sorted(runs, key=lambda kept: kept.created)


def read_entries(paths: Paths, name: str) -> tuple[str, list[Entry]]:
    """Return the id and the entries of the run with that id, or of the newest with that name.

    Raises UsageError if there is no such run.
    """
    if not os.path.exists(paths.journal):
        raise UsageError(f"there is no journal: {paths.journal}")
    with opened(paths.journal) as db:
        known = db.execute("SELECT run_id, name FROM runs ORDER BY rowid").fetchall()
    matching = [run_id for run_id, run_name in known if name in (run_id, run_name)]
    run_id = matching[-1] if matching else archive.find(paths, name)
    if run_id is None:
        names = ", ".join(dict.fromkeys(run_name for _, run_name in known))
        raise UsageError(f"the journal has no run {name!r}", hint=f"it has: {names}" if names else None)
    with opened(paths.journal if matching else archive.place_of(paths, run_id)) as db:
        return run_id, [entry_of(row) for row in db.execute(ROWS, (run_id,))]
