"""What has happened while the journal could not be written, until the journal is tried again."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from orchestrator.core.events import Event, HostReported

JOURNAL_RETRY_S = 1.0


class Backlog:
    """Holds events in their order, and of the reports, which are levels, the last of each run's host.

    Only the deciding thread uses it. Times are seconds of its clock.
    """

    def __init__(self) -> None:
        self._events: deque[tuple[str, Event]] = deque()
        self._reports: dict[tuple[str, str], HostReported] = {}
        self.retry_at: float | None = None
        """When the journal is tried again; None while it can be written."""
        self._stood_at = 0.0
        """Until when the runs know of the time in which nothing could be decided."""

    def begin(self, now: float) -> None:
        """Wait for the journal, which has refused something. Nothing changes while it is waited for already."""
        if self.retry_at is None:
            self._stood_at = now
            self.retry_at = now + JOURNAL_RETRY_S

    def end(self, now: float) -> float:
        """Let the journal be tried again. Return the seconds in which nothing could be decided."""
        self.retry_at = None
        # Waits that follow from what was held begin now: it is only now that anything is done about it.
        self._events = deque((run_id, replace(event, at=now)) for run_id, event in self._events)
        return now - self._stood_at

    def add(self, run_id: str, event: Event) -> None:
        """Hold what the journal could not take."""
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
        """Forget what was decided. A newer report of a host stands for the one that is held."""
        for one in happened:
            run_id, event = one
            if isinstance(event, HostReported):
                self._reports.pop((run_id, event.host), None)
            elif self._events and self._events[0] is one:
                self._events.popleft()
