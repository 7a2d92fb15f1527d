"""The queue of what was posted to the deciding thread, in its order.

Nearly all items are heartbeats that only move numbers, and waking the thread costs as much as deciding one of them. So
these do not wake it: they are taken with the next other item or deadline, and after UNHURRIED_S at the latest.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from typing import Generic, TypeVar

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
        """Whether the taking thread looks within UNHURRIED_S without being woken."""

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
