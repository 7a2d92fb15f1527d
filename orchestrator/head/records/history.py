"""The history of one run: the measurements of its heartbeats, in a SQLite file of its own, thinned out with age.

A value is put into a bucket of each tier of time: 1 s, 10 s and 1 min; and the chief's also into one of each tier of
steps: 1, 8, 64, … A bucket keeps the first, the smallest, the largest and the last value, and their steps, so that no
peak is averaged away, and their number and sum, so that a mean is the true one. Values at single steps are kept until
the file is full, those of the last hour longest. No decision depends on a history: if it cannot be written, only plots
are lost. A damaged file is put aside, and a new one is begun.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple
from urllib.parse import quote

from orchestrator.both import durable, stretches
from orchestrator.protocol.limits import is_kept_first
from orchestrator.reporting.goodput import Moved

log = logging.getLogger(__name__)

FILE = "history.db"

TIERS: Mapping[int, int] = {1: 3600, 10: 86_400, 60: 30 * 86_400}
"""For how many seconds buckets are kept, by the seconds that a bucket covers."""

STEP_TIERS = tuple(8**power for power in range(7))
"""How many steps a bucket of each tier covers. The next coarser tier begins at a multiple of the finer ones."""

SERIES_MAX = 3000
"""The most series of one run. There is a limit because hosts choose the names of metrics."""

_KEPT_FREE = {"tasks": 1 / 3, "metrics": 1 / 6}
"""The share that what tasks use leaves to the script's metrics, and these to the loss and the validation: those come
last, after the first epoch, when a run of many tasks has taken all the rest."""

BYTES_MAX = 128 << 20
"""The most bytes of one run's file. Above four fifths of it, the oldest quarter of a tier is dropped: where steps take
most of the room, of their finest tier that is older than an hour, else of the fullest tier of time. A metric of a
million steps fits."""

_FINE_S = 3600.0

_PAGE_BYTES = 4096
_PENDING_MAX = 200_000
"""How many buckets wait in memory while the disk is full."""

_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS series (id INTEGER PRIMARY KEY, task TEXT NOT NULL, name TEXT NOT NULL, "
    "UNIQUE (task, name))",
    "CREATE TABLE IF NOT EXISTS buckets (series INTEGER, tier INTEGER, begin INTEGER, generation INTEGER, "
    "step_first INTEGER, step_last INTEGER, first REAL, min REAL, max REAL, last REAL, n INTEGER, "
    "sum REAL, step_min INTEGER, step_max INTEGER, PRIMARY KEY (series, tier, begin, generation)) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS steps (series INTEGER, tier INTEGER, begin INTEGER, generation INTEGER, "
    "step_first INTEGER, step_last INTEGER, first REAL, min REAL, max REAL, last REAL, n INTEGER, "
    "sum REAL, step_min INTEGER, step_max INTEGER, at REAL, "
    "PRIMARY KEY (series, tier, begin, generation)) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS counted (series INTEGER, generation INTEGER, n INTEGER, "
    "PRIMARY KEY (series, generation)) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS moves (generation INTEGER PRIMARY KEY, first_at REAL, last_at REAL, "
    "first_step INTEGER, last_step INTEGER)",
    "CREATE TABLE IF NOT EXISTS trainings (generation INTEGER PRIMARY KEY, began_at REAL, saved_s REAL)",
    "CREATE TABLE IF NOT EXISTS watched (begin REAL PRIMARY KEY, end REAL NOT NULL)",
    "CREATE TABLE IF NOT EXISTS nonfinite (series INTEGER, generation INTEGER, step INTEGER, value TEXT, at REAL, "
    "PRIMARY KEY (series, generation)) WITHOUT ROWID",
)
_COLUMNS = "begin, generation, step_first, step_last, first, min, max, last, n, sum, step_min, step_max"
_SINCE_THEN = ("sum", "step_min", "step_max")
"""The columns that a history of the version before does not have."""

Axis = Literal["buckets", "steps"]
"""The table of buckets by time, or by step."""

_WIDTH: Mapping[Axis, int] = {"buckets": 14, "steps": 15}
"""How many columns each has."""

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
    """The values of a series in one stretch of time or of steps, and the steps that they belong to."""

    begin: int
    generation: int
    step_first: int | None
    step_last: int | None
    first: float
    min: float
    max: float
    last: float
    n: int = 1
    sum: float | None = None
    """None: not known, in a history of the version before."""
    step_min: int | None = None
    step_max: int | None = None

    @property
    def mean(self) -> float | None:
        """Return the mean of its values; None if it is not known."""
        return self.last if self.n == 1 else None if self.sum is None else self.sum / self.n

    def join(self, later: Bucket) -> None:
        """Add the bucket that follows."""
        if later.min < self.min:
            self.min, self.step_min = later.min, later.step_min
        if later.max > self.max:
            self.max, self.step_max = later.max, later.step_max
        mine, its = (None if each.mean is None else each.mean * each.n for each in (self, later))
        self.sum = None if mine is None or its is None else mine + its
        self.last, self.step_last, self.n = later.last, later.step_last, self.n + later.n


def _single(begin: int, generation: int, step: int | None, value: float) -> Bucket:
    return Bucket(begin, generation, step, step, value, value, value, value, 1, value, step, step)


def _of_values(begin: int, generation: int, row: Sequence[Any], n: int) -> Bucket:
    """Return the bucket of the last `n` values of a row of `both/stretches.py`."""
    first_step, last_step, count, total, first, low, low_step, high, high_step, last = row
    if n == 1:
        return _single(begin, generation, last_step, last)
    steps, ends = (first_step, last_step), (first, low, high, last)
    return Bucket(begin, generation, *steps, *ends, n, total * n / count, low_step, high_step)


def _row(key: tuple[Axis, int, int, int, int], bucket: Bucket, at: float) -> tuple[object, ...]:
    """Return the row of a table. Of a single value, what `last` says too is left out: a million of them are to fit."""
    b, is_one = bucket, bucket.n == 1
    more = (None,) * 3 if is_one else (b.first, b.min, b.max)
    places = (None,) * 3 if is_one else (b.sum, b.step_min, b.step_max)
    return (*key[1:], b.step_first, None if is_one else b.step_last, *more, b.last, b.n, *places, at)


def _of_stored(row: Sequence[Any]) -> Bucket:
    begin, generation, step_first, step_last, first, low, high, last, n, *more = row
    if first is None:
        return _single(begin, generation, step_first, last)
    return Bucket(begin, generation, step_first, step_last, first, low, high, last, n, *more)


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
        self._open: dict[tuple[Axis, int, int], Bucket] = {}
        """The bucket that grows, by axis, series and tier."""
        self._furthest: dict[tuple[Axis, int, int], tuple[int, int]] = {}
        """By the same: generation and begin of the furthest one. What lies behind it may stand in the file."""
        self._pending: dict[tuple[Axis, int, int, int, int], tuple[Bucket, float]] = {}
        self._counted: dict[tuple[int, int], int] = {}
        """By series and generation, how many of its values were added."""
        self._recounted: set[tuple[int, int]] = set()
        """Those that the next flush writes."""
        self._reached: dict[int, tuple[float, int]] = {}
        """By series: when its newest value was added, and its step."""
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
            if series is not None:
                self._put(series, at, generation, [step, value], 1, tiers, STEP_TIERS if not task else ())

    def follow(
        self, at: float, generation: int, name: str, count: int, rows: Sequence[Sequence[Any]]
    ) -> None:
        """Add those values of a trail (`both/stretches.py`) that were not added yet: a trail tells them again.

        `count`: how many values the metric had in this generation, up to the end of the last row.
        """
        series = self._series("", name)
        if series is None or not rows:
            return
        known = self._known_count(series, generation)
        new: list[tuple[list[Any], int]] = []
        left = count - known
        for row in map(stretches.whole, map(list, reversed(rows))):
            if left <= 0:
                break
            new.append((row, min(row[2], left)))
            left -= row[2]
        before_at, before = self._reached.get(series, (at, 0))
        last = rows[-1][0] if len(rows[-1]) == 2 else rows[-1][1]
        for row, n in reversed(new):
            # Nothing says when each was reported: the steps of a report are spread over the time since the last one.
            part = (row[1] - before) / (last - before) if before < row[1] <= last else 1.0
            self._put(series, before_at + (at - before_at) * part, generation, row, n, TIERS, STEP_TIERS)
        if new:
            self._counted[series, generation] = count
            self._recounted.add((series, generation))
            self._reached[series] = at, last

    def _known_count(self, series: int, generation: int) -> int:
        known = self._counted.get((series, generation))
        if known is None:
            query = "SELECT n FROM counted WHERE series = ? AND generation = ?"
            rows = _rows(self.path, query, (series, generation))
            known = self._counted[series, generation] = rows[0][0] if rows else 0
        return known

    def _put(
        self,
        series: int,
        at: float,
        generation: int,
        values: Sequence[Any],
        n: int,
        tiers: Iterable[int],
        step_tiers: Iterable[int],
    ) -> None:
        row = stretches.whole(list(values))
        places: list[tuple[Axis, int, int]] = [("buckets", tier, int(at) // tier * tier) for tier in tiers]
        if row[0] is not None:
            places += [("steps", tier, int(row[0]) // tier * tier) for tier in step_tiers]
        for axis, tier, begin in places:
            made = _of_values(begin, generation, row, n)
            bucket = self._open.get((axis, series, tier))
            if bucket is None or (bucket.begin, bucket.generation) != (begin, generation):
                here, furthest = (generation, begin), self._furthest.get((axis, series, tier))
                is_new = furthest is not None and here > furthest
                bucket = None if is_new else self._stored(axis, series, tier, begin, generation)
                self._furthest[axis, series, tier] = max(here, furthest or here)
                self._open[axis, series, tier] = bucket or made
            if bucket is not None:
                bucket.join(made)
            if len(self._pending) < _PENDING_MAX:
                self._pending.setdefault(
                    (axis, series, tier, begin, generation), (self._open[axis, series, tier], at)
                )

    def _stored(self, axis: Axis, series: int, tier: int, begin: int, generation: int) -> Bucket | None:
        """Return the bucket as it was left, by this program or by one before: what is added is joined to it."""
        if (waiting := self._pending.get((axis, series, tier, begin, generation))) is not None:
            return waiting[0]
        if self._db is None and not os.path.exists(self.path):
            return None
        try:
            query = f"SELECT {_COLUMNS} FROM {axis} WHERE series = ? AND tier = ? AND begin = ? AND generation = ?"
            found = self._connected().execute(query, (series, tier, begin, generation)).fetchone()
        except (sqlite3.Error, OSError):
            return None  # the next flush meets it too, and says so
        return _of_stored(found) if found is not None else None

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
                used = {series for _, series, *_ in self._pending} | {series for series, _ in self._nonfinite}
                cursor.executemany(
                    "INSERT OR IGNORE INTO series VALUES (?, ?, ?)",
                    [(number, task, name) for (task, name), number in self._ids.items() if number in used],
                )
                for axis, width in _WIDTH.items():
                    rows = [_row(key, *kept)[:width] for key, kept in self._pending.items() if key[0] == axis]
                    marks = ", ".join("?" * width)
                    cursor.executemany(f"INSERT OR REPLACE INTO {axis} VALUES ({marks})", rows)
                counted = [(*key, self._counted[key]) for key in self._recounted]
                cursor.executemany("INSERT OR REPLACE INTO counted VALUES (?, ?, ?)", counted)
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
        self._recounted.clear()
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

    def _connected(self) -> sqlite3.Connection:
        if self._db is None:
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
            db = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, timeout=1.0)
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=OFF")  # a power cut can cost no more than a plot
            db.execute(f"PRAGMA max_page_count={BYTES_MAX // _PAGE_BYTES}")
            for statement in _SCHEMA:
                db.execute(statement)
            known = [row[1] for row in db.execute("PRAGMA table_info(buckets)")]
            for name in _SINCE_THEN:
                if name not in known:
                    db.execute(f"ALTER TABLE buckets ADD COLUMN {name}")
            self._db = db
        return self._db

    def _thin(self, cursor: sqlite3.Cursor, now: float) -> None:
        self._thinned_at = now
        for tier, kept_s in TIERS.items():
            self._drop(cursor, tier, now - kept_s)
        for _ in (*TIERS, *STEP_TIERS):  # a tier with few rows may give little room
            pages = cursor.execute("PRAGMA page_count").fetchone()[0]
            free = cursor.execute("PRAGMA freelist_count").fetchone()[0]
            if (pages - free) * _PAGE_BYTES <= BYTES_MAX * 4 // 5:
                return
            self._make_room(cursor, now)

    def _drop(self, cursor: sqlite3.Cursor, tier: int, until: float) -> None:
        """Drop the buckets of a tier of time that begin before that time."""
        query = "DELETE FROM buckets WHERE series = ? AND tier = ? AND begin < ?"
        cursor.executemany(query, [(series, tier, until) for series in self._ids.values()])

    def _make_room(self, cursor: sqlite3.Cursor, now: float) -> None:
        """Drop the oldest quarter of a tier of what takes most of the room. A row of steps is about half as large."""
        query = "SELECT count(*), min(begin) FROM buckets WHERE tier = ?"
        by_time = {tier: cursor.execute(query, (tier,)).fetchone() for tier in TIERS}
        (steps,) = cursor.execute("SELECT count(*) FROM steps").fetchone()
        if steps > 2 * sum(count for count, _ in by_time.values()) and self._thin_steps(cursor, now):
            return
        fullest = max(by_time, key=lambda tier: by_time[tier][0])
        begin = by_time[fullest][1] or now
        self._drop(cursor, fullest, begin + (now - begin) / 4)

    def _thin_steps(self, cursor: sqlite3.Cursor, now: float) -> bool:
        """Drop the oldest quarter of the finest tier that reaches back more than an hour; else of the finest.

        Return whether there was anything to drop.
        """
        reach = [
            (tier, oldest)
            for tier in STEP_TIERS[:-1]
            for (oldest,) in cursor.execute("SELECT min(at) FROM steps WHERE tier = ?", (tier,))
            if oldest is not None
        ]
        if not reach:
            return False
        tier, oldest = next(((tier, at) for tier, at in reach if now - at > _FINE_S), reach[0])
        until = oldest + (now - oldest) / 4
        coarser = tier * 8
        # Up to where a bucket of the next tier begins: what stands before it is drawn from that tier.
        ends = cursor.execute(
            f"SELECT (max(begin) / {coarser} + 1) * {coarser}, series, generation FROM steps WHERE tier = ? AND at < ? "
            "GROUP BY series, generation",
            (tier, until),
        ).fetchall()
        cursor.executemany(
            f"DELETE FROM steps WHERE tier = {tier} AND begin < ? AND series = ? AND generation = ?", ends
        )
        return bool(ends)

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
    series_list: list[Series] = []
    for key, series in _found(path, wanted):
        tier = _tier(path, series, begin)
        within = "series = ? AND tier = ? AND begin >= ? AND begin <= ? ORDER BY generation, begin"
        reach = (series, tier, begin or 0, end if end is not None else 1 << 40)
        found = _buckets(path, "buckets", within, reach)
        series_list.append(
            Series(*key, tier, tuple(_thinned(found, buckets)), _first_nonfinite(path, series))
        )
    return series_list


def read_by_step(
    path: str, wanted: Iterable[tuple[str, str]], *, first: int | None, last: int | None, buckets: int
) -> list[Series]:
    """Return series by step, as `read` does by time. A history of the version before has buckets of time only."""
    series_list: list[Series] = []
    for key, series in _found(path, wanted):
        low, high = first or 0, last if last is not None else 1 << 62
        found: list[Bucket] = []
        for tier in STEP_TIERS:
            if not found and tier < STEP_TIERS[-1] and _count(path, series, tier, low, high) > 4 * buckets:
                continue
            within = "series = ? AND tier = ? AND begin > ? AND begin <= ? ORDER BY generation, begin"
            rows = _buckets(path, "steps", within, (series, tier, low - tier, high))
            begins: dict[int, int] = {}
            for bucket in found:
                begins[bucket.generation] = min(bucket.begin, begins.get(bucket.generation, bucket.begin))
            # Where the finer tier was dropped, the coarser one stands before it.
            reach = [row for row in rows if row.begin + tier <= begins.get(row.generation, 1 << 62)]
            found += [row for row in reach if (row.step_last or 0) >= low]
        found += _before_steps(path, key, series, low, high, buckets)
        found.sort(key=lambda bucket: (bucket.generation, bucket.step_first or 0))
        series_list.append(Series(*key, 0, tuple(_thinned(found, buckets)), _first_nonfinite(path, series)))
    return series_list


def _before_steps(
    path: str, key: tuple[str, str], series: int, low: int, high: int, buckets: int
) -> list[Bucket]:
    """Return the buckets of time from before those of steps: those of tasks, and of the version before."""
    query = "SELECT generation, min(step_first) FROM steps WHERE series = ? GROUP BY generation"
    begins = dict(_rows(path, query, (series,)))
    return [
        bucket
        for by_time in read(path, [key], begin=None, end=None, buckets=buckets)
        for bucket in by_time.buckets
        if bucket.step_first is not None and bucket.step_last is not None
        if low <= bucket.step_last and bucket.step_first <= high
        if bucket.step_first < begins.get(bucket.generation, math.inf)
    ]


def _found(path: str, wanted: Iterable[tuple[str, str]]) -> list[tuple[tuple[str, str], int]]:
    ids = _ids(path)
    return [(key, ids[key]) for key in wanted if key in ids]


def _first_nonfinite(path: str, series: int) -> dict[int, NonFinite]:
    odd = _rows(path, "SELECT generation, step, value, at FROM nonfinite WHERE series = ?", (series,))
    return {row[0]: NonFinite(*row[1:]) for row in odd}


def _count(path: str, series: int, tier: int, low: int, high: int) -> int:
    query = "SELECT count(*) FROM steps WHERE series = ? AND tier = ? AND begin BETWEEN ? AND ?"
    return int(next(iter(_rows(path, query, (series, tier, low, high))), (0,))[0])


def _buckets(path: str, axis: Axis, where: str, values: tuple[object, ...]) -> list[Bucket]:
    rows = _rows(path, f"SELECT {_COLUMNS} FROM {axis} WHERE {where}", values)
    if not rows and axis == "buckets":  # perhaps of the version before
        columns = _COLUMNS
        for name in _SINCE_THEN:
            columns = columns.replace(name, "NULL")
        rows = _rows(path, f"SELECT {columns} FROM {axis} WHERE {where}", values)
    return [_of_stored(row) for row in rows]


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
