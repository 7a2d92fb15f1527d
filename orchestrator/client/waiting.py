"""Waits for a run, and tolerates an absent coordinator, since training continues without it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from orchestrator.client.choice import status_of
from orchestrator.client.environment import Environment
from orchestrator.core.errors import CoordinatorBusy, CoordinatorUnreachable, JobNotRunning, WaitTimedOut
from orchestrator.core.words import duration
from orchestrator.head.api.client import Client
from orchestrator.head.records.runlogs import RunLogs

POLL_EVERY_S = 0.25
POLL_SHARE = 10.0
"""While nothing happens to the run, a pause is at least this many times as long as the last poll, since a poll of 1,000
tasks costs the coordinator time."""
WAIT_MAX_S = 10.0
"""The longest of these pauses."""
LAST_LINES_MAX_S = 5.0
"""How long to wait for the last log lines of an ended run. They may be lost with their host."""
_LAST_LINES_POLL_S = 0.05
LEFT_MAX_S = 5.0
"""How long to wait for the list of files that an ended run's tasks left, if none of them is fetched."""
UNTOLD_MAX_S = 30.0
"""How long to wait for the first step of a script that reports no stage except running its own code."""
AWAY_MAX_S = 60.0
"""How long to wait for an absent coordinator."""


def trains(run: Mapping[str, Any]) -> bool:
    """Return whether this generation has made a step, according to its status."""
    return run.get("phase") == "RUNNING" and bool(run.get("has_stepped", run.get("global_step") is not None))


def is_untold(run: Mapping[str, Any]) -> bool:
    """Return whether a run was released some time ago and no task reports that training comes nearer.

    The script may load for long, or may never report a step.
    """
    return (
        run.get("phase") == "RUNNING"
        and not trains(run)
        and (run.get("phase_age_s") or 0.0) >= UNTOLD_MAX_S
        and all(task.get("stage") in (None, "building") for task in run.get("tasks") or [])
    )


def wait_s(look_s: float) -> float:
    """Return how long to wait after a poll that took this long."""
    return min(max(POLL_EVERY_S, POLL_SHARE * look_s), WAIT_MAX_S)


def wait_for_the_last_lines(environment: Environment, logs: RunLogs, run: Mapping[str, Any]) -> None:
    """Wait until all log lines of an ended run have arrived."""
    give_up_at = environment.now() + LAST_LINES_MAX_S
    while _is_behind(logs, run) and environment.now() < give_up_at:
        environment.pause(_LAST_LINES_POLL_S)


def _is_behind(logs: RunLogs, run: Mapping[str, Any]) -> bool:
    away = {host.get("host") for host in run.get("hosts") or [] if host.get("link") != "CONNECTED"}
    return any(
        logs.end(str(run["run_id"]), str(task["task"]), int(task["generation"])) < task["log_bytes"]
        for task in run.get("tasks") or []
        if task.get("log_bytes") and task.get("host") not in away
    )


def wait_for_the_outputs(
    environment: Environment, client: Client, run: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Wait until the files of an ended run are known, and fetched if its spec says so. Return its last status."""
    look_until = environment.now() + LEFT_MAX_S
    announced = False
    while (run.get("outputs") or {}).get("pending"):
        directory = run["outputs"]["directory"]
        if directory is None and environment.now() >= look_until:
            break
        if directory is not None and not announced:
            environment.say(f"Fetching `outputs` to {directory}")
            announced = True
        environment.pause(POLL_EVERY_S)
        try:
            run = status_of(client, run)
        except CoordinatorUnreachable:
            break  # `orch status` will tell
    return run


class Wait:
    """Polls one run. `poll` polls once; `run` is the last status.

    Args:
        until: Says whether to stop, given the run's status.
        say: Is called with a message when the coordinator is away, and when it is back.
    """

    def __init__(
        self,
        environment: Environment,
        client: Client,
        run: Mapping[str, Any],
        *,
        until: Callable[[Mapping[str, Any]], bool],
        say: Callable[[str], None],
        timeout_s: float | None = None,
    ) -> None:
        self.run = run
        self._environment, self._client, self._until, self._say = environment, client, until, say
        self._timeout_s = timeout_s
        self._deadline = None if timeout_s is None else environment.now() + timeout_s
        self._away_since: float | None = None
        self._after = 0
        """The number of the last event."""

    @property
    def is_away(self) -> bool:
        """Return whether the coordinator did not answer the last poll, so that `run` is out of date."""
        return self._away_since is not None

    def to_its_end(self) -> Mapping[str, Any]:
        """Poll until `until` holds, and return the run's last status. It raises what `poll` does."""
        while self.poll():
            pass
        return self.run

    def poll(self) -> bool:
        """Poll once, then wait for an event of the run or for a moment. Return False once `until` holds.

        Raises:
            WaitTimedOut: At the deadline.
            CoordinatorUnreachable: Nothing has answered for AWAY_MAX_S, or the coordinator's job has ended.
        """
        began = self._environment.now()
        try:
            # The events come first: a later event then ends the wait that follows, even if the status has it already.
            self._say_events(self._news())
            self.run = status_of(self._client, self.run)
            is_over = self._until(self.run)
            if is_over:
                self._say_events(self._news())  # all events that led to its last phase
        except (CoordinatorUnreachable, CoordinatorBusy) as e:
            if isinstance(e, JobNotRunning) and e.is_over:
                raise
            now = self._environment.now()
            is_busy = isinstance(e, CoordinatorBusy)
            if self._away_since is None:
                self._away_since = now
                start = f"{e}; the run continues without it. `orch coordinator start` starts one"
                if isinstance(e, JobNotRunning):
                    start = f"{e}; it is asked again"
                self._say(
                    "The coordinator is busy and has not answered yet; it is asked again"
                    if is_busy
                    else start
                )
            elif now - self._away_since >= AWAY_MAX_S and not is_busy:
                raise e
        else:
            if self._away_since is not None:
                self._say("The coordinator answers again")
                self._away_since = None
            if is_over:
                return False
            self._say_progress()
        if self._deadline is not None and self._environment.now() >= self._deadline:
            raise WaitTimedOut(
                f"{self.run.get('run_id')} is still {self.run.get('phase')} after "
                f"{duration(self._timeout_s or 0)}: {self.run.get('reason') or ''}".rstrip(": "),
                hint=f"the run continues; `orch status {self.run.get('name')}` shows it",
            )
        # Wait at most until the deadline or the run's next event
        look_s = self._environment.now() - began
        until = self._environment.now() + wait_s(look_s)
        if self._deadline is not None:
            until = min(until, self._deadline)
        # If events follow each other closely, half of the time is left to the coordinator.
        self._pause_until(min(until, self._environment.now() + look_s))
        left_s = until - self._environment.now()
        try:
            is_news = left_s > 0 and not self.is_away and bool(self._events(wait_s=left_s))
        except (CoordinatorUnreachable, CoordinatorBusy):
            is_news = False  # the next poll reports it
        if not is_news:
            self._pause_until(until)
        return True

    def _pause_until(self, at: float) -> None:
        left_s = at - self._environment.now()
        if left_s > 0.0:
            self._environment.pause(left_s)

    def _events(self, *, wait_s: float = 0.0) -> list[dict[str, Any]]:
        """Return the run's new events, and wait up to `wait_s` for one."""
        query: dict[str, str | int | float] = {
            "name": str(self.run["run_id"]),
            "after": self._after,
            "wait_s": round(wait_s, 2),
        }
        try:
            events: list[dict[str, Any]] = self._client.get("/v1/events", query).get("events") or []
        except JobNotRunning:
            return []  # the status says how the run ended, where the job has written that
        return events

    def _news(self) -> list[dict[str, Any]]:
        """Return all of the run's events since the last poll. An answer has a thousand at most."""
        events: list[dict[str, Any]] = []
        while page := self._events():
            events += page
            self._after = page[-1]["seq"]
        return events

    def _say_events(self, events: Sequence[Mapping[str, Any]]) -> None:
        """Report events. A subclass may override it."""

    def _say_progress(self) -> None:
        """Report the progress. A subclass may override it."""
