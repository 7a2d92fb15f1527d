"""The queue of the deciding thread, first in, first out.

Nearly all items are heartbeats that only change numbers, and waking the thread costs as much as deciding one of them.
So these do not wake it: they are taken with the next other item or deadline, and after UNHURRIED_S at the latest.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Sequence
from typing import Generic, TypeVar

from orchestrator.core.events import Event, HostReported

T = TypeVar("T")

UNHURRIED_S = 1.0
"""How long a heartbeat that only changes numbers waits at most: half of the usual interval."""


class Inbox(Generic[T]):
    """A queue into which any thread may put, and from which a single thread gets."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._items: queue.SimpleQueue[T] = queue.SimpleQueue()
        self._unhurried: deque[T] = deque()
        self._looks_soon = False
        """Whether the reading thread wakes by itself within UNHURRIED_S."""

    def put(self, item: T) -> None:
        """Add an item, and wake the reading thread."""
        with self._lock:
            self._hurry()
            self._items.put(item)

    def put_unhurried(self, item: T) -> None:
        """Add an item, and wake the reading thread only if it may sleep for longer than UNHURRIED_S."""
        with self._lock:
            if self._looks_soon:
                self._unhurried.append(item)
            else:
                self._looks_soon = True
                self._items.put(item)

    def hurry(self) -> None:
        """Wake the reading thread."""
        with self._lock:
            self._hurry()

    def get(self, wait_s: float | None) -> T:
        """Return the next item within `wait_s`; None waits without limit. Raises queue.Empty."""
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
        """Return whether an item is waiting. If not, the next item will wake the thread."""
        with self._lock:
            self._looks_soon = bool(self._unhurried)
            self._hurry()
            return self._looks_soon


JOURNAL_RETRY_S = 1.0


class Backlog:
    """Events that wait, in order, while the journal cannot be written, and the last report of each host.

    A report describes a state and not a change, so the last one suffices. Only the deciding thread uses the backlog.
    Times are seconds of that thread's clock.
    """

    def __init__(self) -> None:
        self._events: deque[tuple[str, Event]] = deque()
        self._reports: dict[tuple[str, str], HostReported] = {}
        self.retry_at: float | None = None
        """When the journal is tried again; None while it is writable."""
        self._stood_at = 0.0
        """The runs' deadlines have been postponed by the time without decisions up to this instant."""

    def begin(self, now: float) -> None:
        """Begin to wait for the journal. A second call does nothing."""
        if self.retry_at is None:
            self._stood_at = now
            self.retry_at = now + JOURNAL_RETRY_S

    def end(self, now: float) -> float:
        """Try the journal again. Return the seconds in which nothing could be decided."""
        self.retry_at = None
        return now - self._stood_at

    def add(self, run_id: str, event: Event) -> None:
        """Add an event that could not be journaled."""
        if isinstance(event, HostReported):
            self._reports[run_id, event.host] = event
        else:
            self._events.append((run_id, event))

    def oldest(self) -> tuple[str, Event] | None:
        """Return the oldest event, then each host's last report; None if nothing is held."""
        if self._events:
            return self._events[0]
        for (run_id, _), report in self._reports.items():
            return run_id, report
        return None

    def decided(self, happened: Sequence[tuple[str, Event]]) -> None:
        """Remove events that were decided, unless a newer report of the host has replaced them."""
        for item in happened:
            run_id, event = item
            if isinstance(event, HostReported):
                self._reports.pop((run_id, event.host), None)
            elif self._events and self._events[0] is item:
                self._events.popleft()
