"""The rows of an ended run in a file of its own, beside its logs and curves: a small journal that holds one run.

The journal stays small so, and a run is kept until a person removes its directory.
"""

from __future__ import annotations

import os
import sqlite3
from typing import TYPE_CHECKING

from orchestrator.both import durable
from orchestrator.head.journal import format as journal_format

if TYPE_CHECKING:
    from orchestrator.head.node.paths import Paths

FILE = journal_format.RECORD

TABLES = ("events", "journal", "runs")


def write(db: sqlite3.Connection, run_id: str, run_dir: str) -> None:
    """Copy a run's rows from the journal into its file. The journal still has them. Raises sqlite3.Error, OSError."""

    def copy(target: sqlite3.Connection) -> None:
        target.executemany("INSERT INTO meta VALUES (?, ?)", db.execute("SELECT key, value FROM meta"))
        for table in TABLES:
            rows = db.execute(f"SELECT * FROM {table} WHERE run_id = ?", (run_id,))
            marks = ", ".join("?" * len(rows.description))
            target.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)

    os.makedirs(run_dir, mode=0o700, exist_ok=True)
    journal_format.make(os.path.join(run_dir, FILE), copy)


def place_of(paths: Paths, run_id: str) -> str:
    """Return the file that has the run's rows: its own once it has left the journal, else the journal."""
    own = os.path.join(paths.run_dir(run_id), FILE)
    return own if os.path.exists(own) else paths.journal


def run_ids(paths: Paths, name: str | None = None) -> list[str]:
    """Return the runs that have left the journal, oldest first: all, those of this name, or the one with this id."""
    wanted = [each for each in durable.names(paths.runs) if name in (None, each, each.rsplit("-", 2)[0])]
    kept = [run_id for run_id in wanted if os.path.exists(os.path.join(paths.runs, run_id, FILE))]
    return sorted(kept, key=lambda run_id: run_id.rsplit("-", 2)[1:])


def find(paths: Paths, name: str) -> str | None:
    """Return the run with this id that has left the journal, or the newest such run of this name; None for none."""
    matching = run_ids(paths, name)
    return matching[-1] if matching else None
