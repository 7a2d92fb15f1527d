"""Limits the handshakes with one sshd that are under way at once. The limit falls when sshd drops one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from orchestrator.head.reach.ssh.errors import Dropped

HANDSHAKES_MAX = 8
"""The highest limit. By its default MaxStartups 10:30:100, an sshd drops handshakes above 10 at random."""


_SUCCESSES_TO_RISE = 8


class Gate:
    """Lets a limited number of threads shake hands with one sshd at a time.

    An sshd with a small MaxStartups drops handshakes as long as too many begin at once, however long the waits between
    the tries. So each drop halves the limit, down to one. It rises by one after eight handshakes in a row that were
    not dropped.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._limit = HANDSHAKES_MAX
        self._under_way = 0
        self._successes = 0

    @contextmanager
    def handshake(self) -> Iterator[None]:
        """Wait for a turn, and hold it for the body. A body that raises `Dropped` lowers the number."""
        with self._changed:
            self._changed.wait_for(lambda: self._under_way < self._limit)
            self._under_way += 1
        dropped = False
        try:
            yield
        except Dropped:
            dropped = True
            raise
        finally:
            with self._changed:
                self._under_way -= 1
                self._learn(dropped)
                self._changed.notify_all()

    def _learn(self, dropped: bool) -> None:
        if dropped:
            self._limit, self._successes = max(1, self._limit // 2), 0
            return
        self._successes += 1
        if self._successes == _SUCCESSES_TO_RISE:
            self._limit, self._successes = min(HANDSHAKES_MAX, self._limit + 1), 0
