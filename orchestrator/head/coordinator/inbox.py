"""The queue of what was posted to the deciding thread, in its order.

Nearly all items are heartbeats that only move numbers, and waking the thread costs as much as deciding one of them. So
these do not wake it: they are taken with the next other item or deadline, and after UNHURRIED_S at the latest.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Generic, TypeVar

from orchestrator.core.events import Event, HostReported

T = TypeVar("T")

UNHURRIED_S = 1.0
"""How long a heartbeat that only moves numbers waits at most: half of the usual time between two."""


class Inbox(Generic[T]):
    """Any thread may put; one thread takes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._items: queue.SimpleQueue[T] = queue.SimpleQueue()
        self._unhurried: deque[T] = deque()
        self._looks_soon = False
        """Whether the thread that takes items wakes by itself within UNHURRIED_S."""

    def put(self, item: T) -> None:
        """Wake the thread for this item, and for all that was put before."""
        with self._lock:
            self._hurry()
            self._items.put(item)

    def put_unhurried(self, item: T) -> None:
        """Wake the thread only where it may sleep for long."""
        with self._lock:
            if self._looks_soon:
                self._unhurried.append(item)
            else:
                self._looks_soon = True
                self._items.put(item)

    def hurry(self) -> None:
        """Wake the thread for what was put."""
        with self._lock:
            self._hurry()

    def get(self, wait_s: float | None) -> T:
        """Return the next item, after `wait_s` at most; None waits without end. Raises queue.Empty."""
        if self._looks_soon and (wait_s is None or wait_s > UNHURRIED_S):
            try:
                return self._items.get(timeout=UNHURRIED_S)
            except queue.Empty:
                if self._hurry_or_rest():
                    return self._items.get_nowait()
            wait_s = None if wait_s is None else wait_s - UNHURRIED_S
        try:
            return self._items.get(timeout=wait_s)
        except queue.Empty:
            return self.get_nowait()

    def get_nowait(self) -> T:
        """Return the next item, unhurried or not. Raises queue.Empty."""
        try:
            return self._items.get_nowait()
        except queue.Empty:
            self.hurry()
            return self._items.get_nowait()

    def _hurry(self) -> None:
        while self._unhurried:
            self._items.put(self._unhurried.popleft())

    def _hurry_or_rest(self) -> bool:
        """Return whether something waits. If not, the next item will wake the thread."""
        with self._lock:
            self._looks_soon = bool(self._unhurried)
            self._hurry()
            return self._looks_soon


JOURNAL_RETRY_S = 1.0


class Backlog:
    """Holds events in their order while the journal cannot be written. Of reports it holds each host's last one.

    A report describes a state and not a change, so the last one suffices. Only the deciding thread uses the backlog.
    Times are seconds of that thread's clock.
    """

    def __init__(self) -> None:
        self._events: deque[tuple[str, Event]] = deque()
        self._reports: dict[tuple[str, str], HostReported] = {}
        self.retry_at: float | None = None
        """When the journal is tried again; None while it can be written."""
        self._stood_at = 0.0
        """Up to this time, the runs' waits have been moved by the time in which nothing could be decided."""

    def begin(self, now: float) -> None:
        """Begin to wait for the journal, unless that has begun already."""
        if self.retry_at is None:
            self._stood_at = now
            self.retry_at = now + JOURNAL_RETRY_S

    def end(self, now: float) -> float:
        """Let the journal be tried again. Return the seconds in which nothing could be decided."""
        self.retry_at = None
        # The waits that the held events cause begin now, because only now are they decided.
        self._events = deque((run_id, replace(event, at=now)) for run_id, event in self._events)
        return now - self._stood_at

    def add(self, run_id: str, event: Event) -> None:
        """Hold an event that could not be journaled."""
        if isinstance(event, HostReported):
            self._reports[run_id, event.host] = event
        else:
            self._events.append((run_id, event))

    def oldest(self, now: float) -> tuple[str, Event] | None:
        """Return the oldest event, then each host's last report; None if nothing is held."""
        if self._events:
            return self._events[0]
        for (run_id, _), report in self._reports.items():
            return run_id, replace(report, at=now)
        return None

    def decided(self, happened: Sequence[tuple[str, Event]]) -> None:
        """Forget events that were decided. A newer report of a host replaces the one that is held."""
        for item in happened:
            run_id, event = item
            if isinstance(event, HostReported):
                self._reports.pop((run_id, event.host), None)
            elif self._events and self._events[0] is item:
                self._events.popleft()
