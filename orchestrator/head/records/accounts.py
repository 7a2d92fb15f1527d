"""Accounts of how runs spent their time, from the journal's events and the histories. Nothing is written."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any
from urllib.parse import quote

from orchestrator.core.notes import kind_of
from orchestrator.head.journal import archive
from orchestrator.head.records import history
from orchestrator.reporting.goodput import KINDS, Account, Event, account

_NEW = (
    "SELECT seq, time, run_id, kind, generation, data FROM events WHERE seq > ? AND kind IN "
    f"({', '.join('?' * len(KINDS))}) ORDER BY seq"
)


class Accounts:
    """Reads the events once, and then only what is new. Any thread may call it."""

    def __init__(
        self,
        journal: str,
        run_dir: Callable[[str], str],
        *,
        watches: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`watches`: whether the coordinator asks, which watches the runs now."""
        self._journal, self._run_dir, self._watches, self._clock = journal, run_dir, watches, clock
        self._events: dict[str, list[Event]] = {}
        self._final: dict[str, Account] = {}
        self._seq = 0
        self._lock = threading.Lock()

    def account(self, run_id: str) -> Account | None:
        """Return the account of a run until now; None if the journal has no events of it."""
        return self.accounts_of([run_id]).get(run_id)

    def accounts_of(self, run_ids: Iterable[str]) -> dict[str, Account]:
        """Return the accounts until now of those runs of which the journal has events."""
        with self._lock:
            self._refresh()
            accounts = {run_id: self._account(run_id) for run_id in run_ids}
        return {run_id: account for run_id, account in accounts.items() if account is not None}

    def forget(self, run_id: str) -> None:
        """Forget a run that the journal has dropped."""
        with self._lock:
            self._events.pop(run_id, None)
            self._final.pop(run_id, None)

    def _account(self, run_id: str) -> Account | None:
        if run_id in self._final:
            return self._final[run_id]
        now = self._clock()
        path = os.path.join(self._run_dir(run_id), history.FILE)
        watched = history.watches(path)
        if self._watches and watched:
            watched[-1] = (watched[-1][0], now)
        events = self._events.get(run_id) or self._archived_events(run_id)
        spent = account(events, now=now, moved=history.moves(path), watched=watched)
        # The last moves are written a few seconds after the end. An archived run's would never be forgotten.
        if spent is not None and spent.is_final and now - spent.end > 30 and run_id in self._events:
            self._final[run_id] = spent
        return spent

    def _refresh(self) -> None:
        if not os.path.exists(self._journal):
            return
        rows = _rows(self._journal, self._seq)
        self._seq = rows[-1][0] if rows else self._seq
        for run_id, event in _events_in(rows):
            self._events.setdefault(run_id, []).append(event)

    def _archived_events(self, run_id: str) -> list[Event]:
        """Return the events of a run that has left the journal."""
        path = os.path.join(self._run_dir(run_id), archive.FILE)
        return [event for _, event in _events_in(_rows(path, 0))] if os.path.exists(path) else []


def _rows(path: str, after: int) -> list[tuple[Any, ...]]:
    """Return the rows of the events that count; none if they cannot be read now."""
    try:
        with contextlib.closing(sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True, timeout=1.0)) as db:
            return db.execute(_NEW, (after, *sorted(kind.value for kind in KINDS))).fetchall()
    except sqlite3.Error:
        return []  # it is tried again at the next call; the journal's own reader reports the error


def _events_in(rows: Iterable[tuple[Any, ...]]) -> Iterator[tuple[str, Event]]:
    for _, written_at, run_id, name, generation, data in rows:
        kind = kind_of(name)
        if kind is not None:
            at = datetime.fromisoformat(written_at).timestamp()
            yield run_id, Event(at, kind, generation or 0, _slim(data))


def _slim(data: str) -> dict[str, float | None]:
    """Return the parts of an event's data that an account reads."""
    content = json.loads(data)
    down = content.get("downtime") or {}
    kept = {name: content.get(name) for name in ("global_step", "steps_lost", "gpus", "seeding_s")}
    return kept | {name: down.get(name) for name in ("restored_s", "first_step_s")}
