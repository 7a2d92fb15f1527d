"""Follow a run while a person waits: print its events and progress."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from orchestrator.cli.session import Session
from orchestrator.cli.show import render
from orchestrator.client.waiting import Wait
from orchestrator.core.notes import NoteKind, kind_of
from orchestrator.head.api.client import Client

_PROGRESS_EVERY_S = 5.0
_WAITS_EVERY_S = 60.0
"""So often it is said again what a run waits for, where only the time has passed."""
_NUMBER = re.compile(r"\d+(?:\.\d+)?(?: (?:ms|s|min|h))?")


class Watch(Wait):
    """Wait for a run, and print its events and progress meanwhile.

    Args:
        until: Whether to stop, given the run's status.
        say: Prints a message.
        progress: Print the progress every few seconds.
        from_now: Leave out the events from before the first poll.
        causes_are_shown: Leave out the events that only repeat a first cause, which the merged log shows.
    """

    def __init__(
        self,
        session: Session,
        client: Client,
        run: Mapping[str, Any],
        *,
        until: Callable[[Mapping[str, Any]], bool],
        say: Callable[[str], None],
        timeout_s: float | None = None,
        progress: bool = False,
        from_now: bool = False,
        causes_are_shown: bool = False,
    ) -> None:
        super().__init__(session, client, run, until=until, say=say, timeout_s=timeout_s)
        self._session, self._progress = session, progress
        self._mute = from_now
        self._causes_are_shown = causes_are_shown
        self._event_said: Mapping[str, Any] = {}
        self._said = ""
        self._said_at = session.now()

    def _say_events(self, events: Sequence[Mapping[str, Any]]) -> None:
        for event in events:
            # Only this run's: an older coordinator reads the id as a name, and answers with all runs of that name.
            repeated = self._is_repeated(event)
            if event.get("run") == self.run["run_id"] and not self._mute and not repeated:
                self._say(render.event(event, self._session.paint_err))
                self._event_said = event
                self._said_at = self._session.now()
        self._mute = False

    def _is_repeated(self, event: Mapping[str, Any]) -> bool:
        """Return whether its sentence was already shown: with the first cause, or as the cause of the last event."""
        kind, before = kind_of(event.get("kind")), kind_of(self._event_said.get("kind"))
        if kind is None:
            return False
        if before is NoteKind.TASK_EXITED and kind is NoteKind.STOPPING:
            return event.get("task") is not None and event.get("task") == self._event_said.get("task")
        is_reason = before is not None and before.row.gives_a_reason and kind.row.ends_the_run
        return is_reason or (self._causes_are_shown and kind.row.repeats_a_cause)

    def _say_progress(self) -> None:
        """Print the progress, every few seconds at most and if it has changed; on a terminal what waits is one line."""
        is_shown = self._progress and self.run.get("phase") != "RUNNING" and self._say == self._session.say
        if is_shown and self._session.rewrite(render.progress(self.run)):
            return
        if not self._progress or self._session.now() - self._said_at < _PROGRESS_EVERY_S:
            return
        text = render.progress(self.run)
        # Of what waits, only the time passes: that is said less often
        is_new = text != self._said and (
            self.run.get("phase") == "RUNNING" or _NUMBER.sub("#", text) != _NUMBER.sub("#", self._said)
        )
        if not is_new and self._session.now() - self._said_at < _WAITS_EVERY_S:
            return
        if text != self._said:
            self._say(text)
            self._said = text
        self._said_at = self._session.now()
