"""Follow a run while a person waits: print its events and progress, and tolerate a coordinator that is away."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from orchestrator.adapters.head.client import Client
from orchestrator.adapters.head.runlogs import RunLogs
from orchestrator.cli import render
from orchestrator.cli.run_choice import status_of
from orchestrator.cli.session import Session
from orchestrator.core.errors import CoordinatorUnreachable, WaitTimedOut
from orchestrator.core.notes import NoteKind, kind_of
from orchestrator.core.words import duration

LOOK_EVERY_S = 0.25
_PROGRESS_EVERY_S = 5.0
LAST_LINES_MAX_S = 5.0
"""How long to wait for the last log lines of an ended run. They may be lost with their host."""
_LAST_LINES_LOOK_S = 0.05
AWAY_MAX_S = 60.0
"""How long to wait for a coordinator that is away. Training continues without it."""


def wait_for_the_last_lines(session: Session, logs: RunLogs, run: Mapping[str, Any]) -> None:
    """Wait until all log lines of an ended run have arrived."""
    give_up_at = session.now() + LAST_LINES_MAX_S
    while _is_behind(logs, run) and session.now() < give_up_at:
        session.pause(_LAST_LINES_LOOK_S)


def _is_behind(logs: RunLogs, run: Mapping[str, Any]) -> bool:
    away = {host.get("host") for host in run.get("hosts") or [] if host.get("link") != "CONNECTED"}
    return any(
        logs.end(str(run["run_id"]), str(task["task"]), int(task["generation"])) < task["log_bytes"]
        for task in run.get("tasks") or []
        if task.get("log_bytes") and task.get("host") not in away
    )


class Watch:
    """Poll one run. `look` polls once; `run` is the status that it saw last.

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
        self.run = run
        self._session, self._client = session, client
        self._until, self._say, self._progress = until, say, progress
        self._deadline = None if timeout_s is None else session.now() + timeout_s
        self._timeout_s = timeout_s
        self._after = 0
        self._mute = from_now
        self._causes_are_shown = causes_are_shown
        self._event_said: Mapping[str, Any] = {}
        self._said = ""
        self._said_at = session.now()
        self._away_since: float | None = None

    @property
    def is_away(self) -> bool:
        """Whether the coordinator did not answer the last poll: `run` is then out of date."""
        return self._away_since is not None

    def look(self) -> bool:
        """Print what is new, then wait a moment. Return False once `until` holds.

        Raises:
            WaitTimedOut: At the deadline.
            CoordinatorUnreachable: Nothing has answered for AWAY_MAX_S.
        """
        try:
            # The run first: then all events that led to its last phase are in the next answer.
            self.run = status_of(self._client, self.run)
            self._say_events()
        except CoordinatorUnreachable as e:
            self._away(e)
        else:
            if self._away_since is not None:
                self._say("The coordinator is back")
                self._away_since = None
            if self._until(self.run):
                return False
            self._say_progress()
        if self._deadline is not None and self._session.now() >= self._deadline:
            raise WaitTimedOut(
                f"{render.title(self.run)} is still {self.run.get('phase')} after "
                f"{duration(self._timeout_s or 0)}: {self.run.get('reason') or ''}".rstrip(": "),
                hint=f"the run continues; `orch status {self.run.get('name')}` shows it",
            )
        self._session.pause(LOOK_EVERY_S)
        return True

    def _say_events(self) -> None:
        found = self._client.get("/v1/events", {"name": str(self.run["run_id"]), "after": self._after})
        for event in found.get("events") or []:
            self._after = event["seq"]
            # Only this run's: an older coordinator reads the id as a name, and answers with all runs of that name.
            repeated = self._is_repeated(event)
            if event.get("run") == self.run["run_id"] and not self._mute and not repeated:
                self._say(render.event(event, self._session.paint_err))
                self._event_said = event
                self._said_at = self._session.now()
        self._mute = False

    def _is_repeated(self, event: Mapping[str, Any]) -> bool:
        """Return whether its sentence was shown with the first cause, or just before as what the event is due to."""
        kind, before = kind_of(event.get("kind")), kind_of(self._event_said.get("kind"))
        if kind is None:
            return False
        if before is NoteKind.TASK_EXITED and kind is NoteKind.STOPPING:
            return event.get("task") is not None and event.get("task") == self._event_said.get("task")
        is_reason = before is not None and before.row.gives_a_reason and kind.row.ends_the_run
        return is_reason or (self._causes_are_shown and kind.row.repeats_a_cause)

    def _say_progress(self) -> None:
        """Print the progress, at most every few seconds and only if it has changed."""
        if not self._progress or self._session.now() - self._said_at < _PROGRESS_EVERY_S:
            return
        text = render.progress(self.run)
        if text != self._said:
            self._say(text)
            self._said = text
        self._said_at = self._session.now()

    def _away(self, error: CoordinatorUnreachable) -> None:
        now = self._session.now()
        if self._away_since is None:
            self._away_since = now
            self._say(f"{error}; the run continues without it. `orch coordinator start` starts one")
        elif now - self._away_since >= AWAY_MAX_S:
            raise error
