"""Answers that are the same for every host of a run: the first thread that asks finds one, and the others wait for it.

All hosts of a run are prepared at once. Each of them reading the working directory and parsing the script again would
cost the head more than all the rest of a start.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

T = TypeVar("T")

GOOD_FOR_S = 5.0
"""How long an answer counts. Files change: a host that is prepared again later is judged by what they are then."""


class SharedAnswers:
    """Any thread may ask. An error is not kept: each thread that asks gets its own."""

    def __init__(self, *, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._kept: dict[Hashable, _Kept] = {}

    def of(self, question: Hashable, find: Callable[[], T], *, fresh: bool = False) -> T:
        """Return the answer that was found within GOOD_FOR_S, or find it. With `fresh`, always find it.

        Raises what `find` raises.
        """
        with self._lock:
            self._forget_old()
            kept = self._kept.setdefault(question, _Kept())
        with kept.finding:
            if fresh or kept.found_at is None or self._now() - kept.found_at >= GOOD_FOR_S:
                kept.answer = find()
                kept.found_at = self._now()
            answer: T = kept.answer
        return answer

    def _forget_old(self) -> None:
        old = self._now() - GOOD_FOR_S
        for question, kept in list(self._kept.items()):
            if kept.found_at is not None and kept.found_at <= old:
                del self._kept[question]


class _Kept:
    """One answer."""

    def __init__(self) -> None:
        self.finding = threading.Lock()
        self.found_at: float | None = None
        self.answer: Any = None
