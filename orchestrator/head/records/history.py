"""The history of one run: the measurements of its heartbeats, in a SQLite file of its own, thinned out with age.

A value is put into a bucket of each tier: 1 s, 10 s and 1 min. A bucket keeps the first, the smallest, the largest and
the last value, and their steps, so that no peak is averaged away. No decision depends on a history: if it cannot be
written, only plots are lost. A damaged file is put aside, and a new one is begun.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple
from urllib.parse import quote

from orchestrator.both import durable
from orchestrator.protocol.limits import is_kept_first
from orchestrator.reporting.goodput import Moved

log = logging.getLogger(__name__)

FILE = "history.db"

TIERS: Mapping[int, int] = {1: 3600, 10: 86_400, 60: 30 * 86_400}
"""For how many seconds buckets are kept, by the seconds that a bucket covers."""

SERIES_MAX = 3000
"""The most series of one run. There is a limit because hosts choose the names of metrics."""

_KEPT_FREE = {"tasks": 1 / 3, "metrics": 1 / 6}
"""The share that what tasks use leaves to the script's metrics, and these to the loss and the validation: those come
last, after the first epoch, when a run of many tasks has taken all the rest."""

BYTES_MAX = 128 << 20
"""The most bytes of one run's file. Above four fifths of it, the oldest quarter of each tier is dropped."""

_PAGE_BYTES = 4096
_PENDING_MAX = 200_000
"""How many buckets wait in memory while the disk is full."""

_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS series (id INTEGER PRIMARY KEY, task TEXT NOT NULL, name TEXT NOT NULL, "
    "UNIQUE (task, name))",
    "CREATE TABLE IF NOT EXISTS buckets (series INTEGER, tier INTEGER, begin INTEGER, generation INTEGER, "
    "step_first INTEGER, step_last INTEGER, first REAL, min REAL, max REAL, last REAL, n INTEGER, "
    "PRIMARY KEY (series, tier, begin, generation)) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS moves (generation INTEGER PRIMARY KEY, first_at REAL, last_at REAL, "
    "first_step INTEGER, last_step INTEGER)",
    "CREATE TABLE IF NOT EXISTS trainings (generation INTEGER PRIMARY KEY, began_at REAL, saved_s REAL)",
    "CREATE TABLE IF NOT EXISTS watched (begin REAL PRIMARY KEY, end REAL NOT NULL)",
    "CREATE TABLE IF NOT EXISTS nonfinite (series INTEGER, generation INTEGER, step INTEGER, value TEXT, at REAL, "
    "PRIMARY KEY (series, generation)) WITHOUT ROWID",
)
_PUT = (
    "INSERT INTO buckets VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET "
    "min = min(min, excluded.min), max = max(max, excluded.max), last = excluded.last, "
    "step_last = excluded.step_last, n = max(n, excluded.n)"
)
_MOVE = (
    "INSERT INTO moves VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET "
    "last_at = max(last_at, excluded.last_at), last_step = max(last_step, excluded.last_step)"
)
_TRAIN = (
    "INSERT INTO trainings VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET "
    "began_at = ifnull(began_at, excluded.began_at), saved_s = max(saved_s, excluded.saved_s)"
)
_WATCH = "INSERT INTO watched VALUES (?, ?) ON CONFLICT DO UPDATE SET end = max(end, excluded.end)"


@dataclass(slots=True)
class Bucket:
    """The values of a series in one stretch of time, and the steps that they belong to."""

    begin: int
    generation: int
    step_first: int | None
    step_last: int | None
    first: float
    min: float
    max: float
    last: float
    n: int = 1

    def add(self, step: int | None, value: float) -> None:
        """Add a later value."""
        self.min, self.max, self.last = min(self.min, value), max(self.max, value), value
        self.step_last, self.n = step, self.n + 1

    def join(self, later: Bucket) -> None:
        """Add the bucket that follows."""
        self.min, self.max = min(self.min, later.min), max(self.max, later.max)
        self.last, self.step_last, self.n = later.last, later.step_last, self.n + later.n


class NonFinite(NamedTuple):
    """The first value of a metric that was not finite: the step, `nan`, `inf` or `-inf`, and the Unix time."""

    step: int
    value: str
    at: float


@dataclass(frozen=True, slots=True)
class Series:
    """One value of one task (or `host:NAME`), by generation. `tier_s`: the seconds of a bucket."""

    task: str
    name: str
    tier_s: int
    buckets: tuple[Bucket, ...]
    nonfinite: Mapping[int, NonFinite] = field(default_factory=dict)
    """When the metric was first not finite, by generation."""


class History:
    """Writes one run's history. One thread uses it. A failure is logged once; values that were not written are lost."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.failure: str | None = None
        """Why it cannot be written now."""
        self._db: sqlite3.Connection | None = None
        self._ids: dict[tuple[str, str], int] = {}
        self._open: dict[tuple[int, int], Bucket] = {}
        """The bucket that grows, by series and tier."""
        self._pending: dict[tuple[int, int, int, int], Bucket] = {}
        self._moves: dict[int, Moved] = {}
        self._watched: tuple[float, float] | None = None
        self._nonfinite: dict[tuple[int, int], NonFinite] = {}
        self._thinned_at = 0.0

    def add(
        self,
        at: float,
        generation: int,
        step: int | None,
        task: str,
        values: Mapping[str, float],
        *,
        tiers: Iterable[int] = TIERS,
    ) -> None:
        """Add values of a task at that time. The next `flush` writes them."""
        for name, value in values.items():
            series = self._series(task, name)
            if series is None:
                continue
            for tier in tiers:
                begin = int(at) // tier * tier
                bucket = self._open.get((series, tier))
                if bucket is not None and (bucket.begin, bucket.generation) == (begin, generation):
                    bucket.add(step, value)
                else:
                    bucket = Bucket(begin, generation, step, step, value, value, value, value)
                    self._open[series, tier] = bucket
                if len(self._pending) < _PENDING_MAX:
                    self._pending[series, tier, begin, generation] = bucket

    def moved(self, generation: int, moved: Moved) -> None:
        """Record when the position of a generation moved."""
        before = self._moves.get(generation, moved)
        self._moves[generation] = replace(
            moved,
            first_at=before.first_at,
            first_step=before.first_step,
            began_at=moved.began_at if before.began_at is None else before.began_at,
        )

    def watched(self, at: float) -> None:
        """Record that a coordinator watched the run at that time."""
        self._watched = (self._watched[0] if self._watched is not None else at, at)

    def not_finite(self, at: float, generation: int, values: Mapping[str, tuple[int, str]]) -> None:
        """Record at which step metrics were first not finite. Buckets cannot hold such values."""
        for name, (step, value) in values.items():
            if (series := self._series("", name)) is not None:
                self._nonfinite.setdefault((series, generation), NonFinite(step, value, at))

    def flush(self, now: float) -> None:
        """Write the new points, and drop those that are too old."""
        try:
            db = self._connected()
            with contextlib.closing(db.cursor()) as cursor:
                cursor.execute("BEGIN IMMEDIATE")
                used = {series for series, *_ in (*self._pending, *self._nonfinite)}
                cursor.executemany(
                    "INSERT OR IGNORE INTO series VALUES (?, ?, ?)",
                    [(number, task, name) for (task, name), number in self._ids.items() if number in used],
                )
                cursor.executemany(_PUT, [self._row(key, bucket) for key, bucket in self._pending.items()])
                cursor.executemany(
                    _MOVE,
                    [
                        (number, *(entry.first_at, entry.last_at, entry.first_step, entry.last_step))
                        for number, entry in self._moves.items()
                    ],
                )
                trainings = [(number, entry.began_at, entry.saved_s) for number, entry in self._moves.items()]
                cursor.executemany(_TRAIN, trainings)
                if self._watched is not None:
                    cursor.execute(_WATCH, self._watched)
                odd = [(*key, *first) for key, first in self._nonfinite.items()]
                cursor.executemany("INSERT OR IGNORE INTO nonfinite VALUES (?, ?, ?, ?, ?)", odd)
                if now - self._thinned_at >= 60:
                    self._thin(cursor, now)
                cursor.execute("COMMIT")
        except (sqlite3.Error, OSError) as e:
            self._failed(e)
            return
        self._pending.clear()
        self.failure = None

    def close(self) -> None:
        """Fold the write-ahead log back and close."""
        if self._db is not None:
            with contextlib.suppress(sqlite3.Error):
                self._db.close()
            self._db = None

    def _series(self, task: str, name: str) -> int | None:
        """Return the number of a series; None if there are too many."""
        if not self._ids:
            self._ids = _ids(self.path)
        known = self._ids.get((task, name))
        free = _KEPT_FREE["tasks"] if task else 0.0 if is_kept_first(name) else _KEPT_FREE["metrics"]
        if known is None and len(self._ids) < SERIES_MAX * (1 - free):
            known = self._ids[task, name] = max(self._ids.values(), default=0) + 1
        return known

    @staticmethod
    def _row(key: tuple[int, int, int, int], bucket: Bucket) -> tuple[object, ...]:
        steps = (bucket.step_first, bucket.step_last)
        return (*key, *steps, bucket.first, bucket.min, bucket.max, bucket.last, bucket.n)

    def _connected(self) -> sqlite3.Connection:
        if self._db is None:
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
            db = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, timeout=1.0)
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=OFF")  # a power cut can cost no more than a plot
            db.execute(f"PRAGMA max_page_count={BYTES_MAX // _PAGE_BYTES}")
            for statement in _SCHEMA:
                db.execute(statement)
            self._db = db
        return self._db

    def _thin(self, cursor: sqlite3.Cursor, now: float) -> None:
        self._thinned_at = now
        pages = cursor.execute("PRAGMA page_count").fetchone()[0]
        free = cursor.execute("PRAGMA freelist_count").fetchone()[0]
        is_large = (pages - free) * _PAGE_BYTES > BYTES_MAX * 4 // 5
        for tier, kept_s in TIERS.items():
            oldest = now - kept_s
            if is_large:
                query = "SELECT min(begin) FROM buckets WHERE tier = ?"
                begin = cursor.execute(query, (tier,)).fetchone()[0] or now
                oldest = max(oldest, begin + (now - begin) / 4)
            for series in self._ids.values():
                cursor.execute(
                    "DELETE FROM buckets WHERE series = ? AND tier = ? AND begin < ?", (series, tier, oldest)
                )

    def _failed(self, error: sqlite3.Error | OSError) -> None:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if self.failure is None:
            log.warning(
                "the history %s cannot be written: %s; plots are lost, the run is not", self.path, error
            )
        self.failure = str(error)
        if self._db is not None and self._db.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")
        self.close()
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR):
            with contextlib.suppress(OSError):
                durable.place(self.path, self.path + ".damaged")
            for suffix in ("-wal", "-shm"):
                with contextlib.suppress(OSError):
                    os.unlink(self.path + suffix)


# ---------------------------------------------------------------- reading


def names(path: str) -> list[tuple[str, str]]:
    """Return (task, name) of all series; none where there is no history, or none that can be read."""
    return list(_ids(path))


def moves(path: str) -> dict[int, Moved]:
    """Return by generation when its position moved."""
    rows = _rows(path, "SELECT generation, first_at, last_at, first_step, last_step FROM moves")
    trainings = _rows(path, "SELECT generation, began_at, saved_s FROM trainings")
    more = {number: (began_at, saved_s) for number, began_at, saved_s in trainings}
    return {row[0]: Moved(*row[1:], *more.get(row[0], ())) for row in rows}


def watches(path: str) -> list[tuple[float, float]]:
    """Return the spans in which a coordinator watched the run; none where that was not recorded."""
    return [(begin, end) for begin, end in _rows(path, "SELECT begin, end FROM watched ORDER BY begin")]


def read(
    path: str, wanted: Iterable[tuple[str, str]], *, begin: float | None, end: float | None, buckets: int
) -> list[Series]:
    """Return series, each with `buckets` buckets at most for each generation, from the finest tier that reaches back.

    Args:
        wanted: (task, name) of each.
        begin: Unix time; None for all that is kept.
        end: Unix time; None for now.
    """
    ids = _ids(path)
    series_list: list[Series] = []
    for task, name in wanted:
        series = ids.get((task, name))
        if series is None:
            continue
        tier = _tier(path, series, begin)
        rows = _rows(
            path,
            "SELECT begin, generation, step_first, step_last, first, min, max, last, n FROM buckets "
            "WHERE series = ? AND tier = ? AND begin >= ? AND begin <= ? ORDER BY generation, begin",
            (series, tier, begin or 0, end if end is not None else 1 << 40),
        )
        odd = _rows(path, "SELECT generation, step, value, at FROM nonfinite WHERE series = ?", (series,))
        thinned = tuple(_thinned([Bucket(*row) for row in rows], buckets))
        series_list.append(Series(task, name, tier, thinned, {row[0]: NonFinite(*row[1:]) for row in odd}))
    return series_list


def cells(
    path: str, wanted: Iterable[tuple[str, str]], *, begin: float | None, end: float | None, count: int
) -> dict[tuple[str, str], dict[int, float]]:
    """Return the last value of each series in each of about `count` equal stretches of time, by their begin."""
    ids = _ids(path)
    known = {ids[key]: key for key in wanted if key in ids}
    if not known:
        return {}
    keys, reach = ",".join("?" * len(known)), (begin or 0, end if end is not None else 1 << 40)
    ends = f"SELECT min(begin), max(begin) FROM buckets WHERE series IN ({keys}) AND tier = ? AND begin BETWEEN ? AND ?"
    coarsest = max(TIERS)
    extent = _rows(path, ends, (*known, coarsest, *reach))
    if not extent or extent[0][0] is None:
        return {}
    wide = -(-(extent[0][1] - extent[0][0] + coarsest) // max(1, count))
    tier = coarsest if wide >= coarsest else _tier(path, next(iter(known)), begin)
    width = -(-wide // tier) * tier
    # With max(), SQLite returns the other columns of the row that has the maximum: the newest value of the stretch.
    query = (
        f"SELECT series, begin / {width} * {width}, max(begin), last FROM buckets "
        f"WHERE series IN ({keys}) AND tier = ? AND begin BETWEEN ? AND ? GROUP BY 1, 2"
    )
    made: dict[tuple[str, str], dict[int, float]] = {}
    for series, at, _, value in _rows(path, query, (*known, tier, *reach)):
        made.setdefault(known[series], {})[at] = value
    return made


def _tier(path: str, series: int, begin: float | None) -> int:
    """Return the finest tier that still has values at `begin`, or the one that reaches back furthest."""
    rows = _rows(path, "SELECT tier, min(begin) FROM buckets WHERE series = ? GROUP BY tier", (series,))
    if not rows:
        return max(TIERS)
    earliest = max(min(at for _, at in rows), begin or 0)
    # A coarser bucket may begin earlier than the first finer bucket within it, by less than its own length.
    return min(int(tier) for tier, at in rows if at <= earliest + max(TIERS))


def _thinned(buckets: list[Bucket], wanted: int) -> Iterable[Bucket]:
    """Join neighbouring buckets of a generation until at most `wanted` are left."""
    if len(buckets) <= wanted:
        return buckets
    width = -(-len(buckets) // max(1, wanted))
    made: list[Bucket] = []
    count = 0
    for bucket in buckets:
        if made and count < width and made[-1].generation == bucket.generation:
            made[-1].join(bucket)
            count += 1
        else:
            made.append(bucket)
            count = 1
    return made


def _ids(path: str) -> dict[tuple[str, str], int]:
    rows = _rows(path, "SELECT task, name, id FROM series ORDER BY id LIMIT ?", (SERIES_MAX,))
    return {(task, name): number for task, name, number in rows}


def _rows(path: str, query: str, values: tuple[object, ...] = ()) -> list[Any]:
    if not os.path.exists(path):
        return []
    try:
        with contextlib.closing(sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True, timeout=1.0)) as db:
            return db.execute(query, values).fetchall()
    except sqlite3.Error:
        return []
