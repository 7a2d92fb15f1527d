"""Reads the newest events of the journal, for messages to people, without holding up the writer."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from typing import Any, NamedTuple
from urllib.parse import quote

from orchestrator.core.notes import NoteKind
from orchestrator.reporting.notices import Happened

NEWS_MAX = 1000
"""How many events are read at once."""

_KINDS = sorted(kind.value for kind in NoteKind if kind.row.notice)
_NEW = (
    "SELECT seq, run_id, name, kind, message, time, task, generation, data FROM events WHERE seq > ? AND kind IN "
    f"({', '.join('?' * len(_KINDS))}) ORDER BY seq LIMIT {NEWS_MAX}"
)


class News(NamedTuple):
    """The new events, and the number of the last event of any kind that was read."""

    seq: int
    happened: list[Happened]


def newest_seq(path: str) -> int:
    """Return the number of the newest event; 0 if there is none."""
    return int(_ask(path, "SELECT coalesce(max(seq), 0) FROM events", ())[0][0])


def news(path: str, after: int) -> News:
    """Return the events since that number that messages may be about. Raises OSError; then it may be tried again."""
    newest = newest_seq(path)
    rows = _ask(path, _NEW, (after, *_KINDS))
    seq = rows[-1][0] if len(rows) == NEWS_MAX else max(newest, rows[-1][0] if rows else after)
    return News(seq, [_happened(*row[1:]) for row in rows])


def _happened(
    run_id: str,
    name: str,
    kind: str,
    message: str,
    time: str,
    task: str | None,
    generation: int | None,
    data: str,
) -> Happened:
    cause = json.loads(data or "{}").get("first_cause")
    return Happened(
        run_id,
        name,
        kind,
        message,
        time[:19].replace("T", " ") + " UTC",
        task,
        generation or 0,
        cause if isinstance(cause, dict) else {},
    )


def _ask(path: str, query: str, values: tuple[object, ...]) -> list[tuple[Any, ...]]:
    if not os.path.exists(path):
        raise OSError(f"{path} is not there")
    try:
        uri = f"file:{quote(path)}?mode=ro"
        with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=1.0)) as db:
            return db.execute(query, values).fetchall()
    except sqlite3.Error as e:
        raise OSError(str(e)) from e
