"""Reports that wait for the deciding thread: the newest one per run and host, with a limited rate.

Most reports only change numbers. A report that changes the state of a run is journaled, so a host whose every report
differs would fill the disk and keep the deciding thread busy. Each host of a run has an allowance of such reports. A
host above it is slowed down: its next report waits for a moment, and is decided without its texts.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from orchestrator.core import report_fields
from orchestrator.core.events import HostReported
from orchestrator.head.links.allowance import Allowance

JOURNALED_PER_S = 0.5
JOURNALED_BURST = 300.0
"""The allowance of a run's host. Starting or ending all tasks of a host uses a few dozen."""

CHARS_OF_ONE = 4096
"""This many characters of text count as one report."""

_PAUSE_MAX_S = 2.0
"""The longest pause. After a longer one, the host would seem silent."""

Key = tuple[str, str]
"""A run and a host."""


class Waiting:
    """The place of a host's report in the inbox. A newer report of the same host replaces it there."""

    def __init__(self, key: Key, event: HostReported) -> None:
        self.key = key
        self.event = event


class Reports:
    """The waiting reports. Any thread may add one; the deciding thread takes them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._newest: dict[Key, Waiting] = {}
        self._allowances: dict[Key, Allowance] = {}
        self._paused: dict[Key, tuple[float, Waiting]] = {}
        self._last: dict[Key, tuple[object, ...]] = {}
        """The last report without its numbers, by run and host."""

    def add(self, run_id: str, event: HostReported) -> Waiting | None:
        """Return the place that the report needs in the inbox; None if it has replaced an older one."""
        key = (run_id, event.host)
        with self._lock:
            if key in self._newest:
                self._newest[key].event = event
                return None
            self._newest[key] = Waiting(key, event)
            return self._newest[key]

    def is_news(self, run_id: str, event: HostReported) -> bool:
        """Return whether a report differs from the host's last one in more than numbers."""
        key, content = (run_id, event.host), report_fields.news(event)
        is_news = self._last.get(key) != content
        self._last[key] = content
        return is_news

    def close(self, run_id: str, host: str | None) -> None:
        """Let no later report of the run replace one in the inbox, since another event comes in between.

        The host's next report then counts as news, whatever its content.
        """
        if host is not None:
            self._last.pop((run_id, host), None)
        with self._lock:
            for key in [key for key in self._newest if key[0] == run_id and key not in self._paused]:
                del self._newest[key]

    def admit(self, waiting: Waiting, now: float) -> HostReported | None:
        """Return the report to decide now; None if its host must pause."""
        key = waiting.key
        with self._lock:
            pause_s = self._pause_s(key, now) if key not in self._paused else 0.0
            if pause_s > 0:
                self._paused[key] = (now + min(pause_s, _PAUSE_MAX_S), waiting)
                self._newest[key] = waiting
                return None
            is_late = self._paused.pop(key, None) is not None
            if self._newest.get(key) is waiting:
                del self._newest[key]
        return _without_texts(waiting.event) if is_late else waiting.event

    def journaled(self, run_id: str, event: HostReported, now: float) -> None:
        """Count a report that was journaled against the allowance of its host."""
        key = (run_id, event.host)
        allowance = self._allowances.setdefault(key, Allowance(JOURNALED_PER_S, JOURNALED_BURST, now))
        chars = sum(len(message) for task in event.tasks for _, message in task.said)
        lines = sum(
            len(line) for task in event.tasks if task.exit is not None for line in task.exit.last_lines
        )
        names = [
            *(task.progress.metrics for task in event.tasks),
            *(task.progress.nonfinite for task in event.tasks),
            *(
                [told for told in task.progress.measured.values() if isinstance(told, str)]
                for task in event.tasks
            ),
        ]
        allowance.spend(
            1 + (chars + lines + sum(len(name) for metrics in names for name in metrics)) / CHARS_OF_ONE, now
        )

    def due_at(self) -> float | None:
        """Return when the first paused report may be decided; None if none is paused."""
        return min((at for at, _ in self._paused.values()), default=None)

    def due(self, now: float) -> list[Waiting]:
        """Return the paused reports that may be decided now."""
        return [waiting for at, waiting in list(self._paused.values()) if at <= now]

    def forget(self, run_ids: Collection[str]) -> None:
        """Forget runs that are over."""
        with self._lock:
            for known in (self._newest, self._allowances, self._paused):
                for key in [key for key in known if key[0] in run_ids]:
                    del known[key]
            for key in [key for key in list(self._last) if key[0] in run_ids]:
                self._last.pop(key, None)

    def _pause_s(self, key: Key, now: float) -> float:
        allowance = self._allowances.get(key)
        return allowance.spend(0.0, now) if allowance is not None else 0.0


def _without_texts(event: HostReported) -> HostReported:
    """Return the report without texts that a host may choose, except the cause of an end."""
    tasks = tuple(
        replace(
            task,
            said=(),
            progress=replace(
                task.progress,
                metrics={},
                metric_steps={},
                nonfinite={},
                measured=_without_words(task.progress.measured),
            ),
            exit=task.exit and replace(task.exit, last_lines=(), error=None),
        )
        for task in event.tasks
    )
    return replace(event, tasks=tasks, measured=_without_words(event.measured))


def _without_words(measured: Any) -> Any:
    return {name: fact for name, fact in measured.items() if not isinstance(fact, str)}
