"""A transaction of the journal."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

from orchestrator.core.errors import JournalError


class Part:
    """A part of a transaction that has begun: it neither begins nor ends it, and says likewise what goes wrong."""

    def __init__(self, db: sqlite3.Connection, told: Callable[[sqlite3.Error], JournalError]) -> None:
        self._db = db
        self._told = told

    def __enter__(self) -> None:
        if not self._db.in_transaction:  # a full disk has rolled back all that was before
            raise self._told(sqlite3.OperationalError("the transaction was rolled back"))

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, sqlite3.Error):
            raise self._told(error) from error


class Transaction:
    """BEGIN IMMEDIATE … COMMIT, or ROLLBACK. `with connection:` of sqlite3 would not begin one here.

    What SQLite complains of comes out as JournalError.
    """

    def __init__(
        self,
        db: sqlite3.Connection,
        told: Callable[[sqlite3.Error], JournalError],
        committed: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare it; `committed` is called once it is on the disk."""
        self._db = db
        self._told = told
        self._committed = committed

    def __enter__(self) -> None:
        try:
            self._db.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as e:
            raise self._told(e) from e

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            try:
                self._db.execute("COMMIT")
            except sqlite3.Error as e:
                self._rollback()
                raise self._told(e) from e
            self._committed()
            return
        self._rollback()
        if isinstance(error, sqlite3.Error):
            raise self._told(error) from error

    def _rollback(self) -> None:
        if self._db.in_transaction:  # a full disk may have rolled back already
            self._db.execute("ROLLBACK")
