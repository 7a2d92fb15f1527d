"""How many handshakes with one sshd may be under way at once: fewer after each one that it drops."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from orchestrator.head.reach.ssh.errors import Dropped

HANDSHAKES_MAX = 8
"""At once to one sshd: its MaxStartups, 10:30:100 by default, drops more at random."""


_SUCCESSES_TO_RISE = 8


class Gate:
    """Lets a bounded number of threads shake hands with one sshd at a time.

    An sshd whose MaxStartups is small drops some of our handshakes whatever the waits between the attempts,
    as long as we begin as many as before. So each dropped one halves the number, down to one at a time, which
    every sshd takes; it rises by one after eight handshakes in a row that were not dropped.
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
