"""Measure a run's recovery from a fault: when it was noticed, when training resumed, how many steps were lost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.cli.session import Session
from orchestrator.client.choice import is_active, status_of
from orchestrator.core.errors import CoordinatorUnreachable
from orchestrator.core.faults import KINDS
from orchestrator.core.notes import NoteKind, kind_of
from orchestrator.head.api.client import Client

POLL_EVERY_S = 0.05

HEARD_AFTER_S = 0.5
"""How much later than the fault a host must have reported: reports that were already on their way do not count."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A row of the table. Seconds count from just before the fault was ordered, by this machine's clock."""

    kind: str
    target: str
    step: int
    """The run's step when the fault was injected."""
    recovered: bool
    noticed_s: float | None
    """Until the first event that it caused; None if there was none."""
    again_s: float | None
    """Until the first step of the restarted tasks; 0 if training never stopped, None if it did not resume."""
    lost: int | None
    """Steps that had to be trained again."""
    done: str


def watch_recovery(
    client: Client,
    before: Mapping[str, Any],
    *,
    kind: str,
    target: str,
    after: int,
    at: float,
    session: Session,
    for_s: float,
    timeout_s: float,
) -> Outcome:
    """Poll until the run trains again or has ended, or until `timeout_s` after the fault's end.

    Args:
        before: The run's status just before the fault; `after` its last event's number, `at` the time.
        for_s: How long the fault lasts; 0 for one without a duration.
    """
    step = int(before["global_step"])
    seen = Outcome(kind, target, step, recovered=False, noticed_s=None, again_s=None, lost=None, done="")
    while True:
        elapsed = session.now() - at
        late = elapsed > for_s + timeout_s
        try:
            run = status_of(client, before)
            if seen.noticed_s is None:
                seen = _notice(seen, client, before, after, elapsed)
        except CoordinatorUnreachable:
            if late:
                raise
        else:
            over = elapsed >= for_s and not KINDS[kind].restarts
            outcome = _conclusion(seen, before, run, elapsed, over=over)
            if outcome is not None:
                return _measured(outcome, client, before, after) if outcome.recovered else outcome
            if late:
                return replace(seen, done=str(run["reason"]))
        session.pause(POLL_EVERY_S)


def _notice(seen: Outcome, client: Client, run: Mapping[str, Any], after: int, elapsed: float) -> Outcome:
    for event in _events(client, run, after):
        kind = kind_of(event["kind"])
        if kind is None or not kind.row.is_routine:
            return replace(seen, noticed_s=elapsed, done=str(event.get("message") or event["kind"]))
    return seen


def _conclusion(
    seen: Outcome, before: Mapping[str, Any], run: Mapping[str, Any], elapsed: float, *, over: bool
) -> Outcome | None:
    """Return the outcome; None while it is undecided. `over`: the fault has ended, and may have restarted nothing."""
    if not is_active(run):
        succeeded = run["phase"] == "SUCCEEDED"
        return replace(
            seen, recovered=succeeded, done=f"{seen.done}; the run ended as {run['phase']}".lstrip("; ")
        )
    if not _trains(run, elapsed - HEARD_AFTER_S):
        return None
    old = {task["task"]: task["generation"] for task in before["tasks"]}
    if any(task["generation"] > old.get(task["task"], 0) for task in run["tasks"]):
        return replace(seen, recovered=True, again_s=elapsed)
    if over and int(run["global_step"]) > seen.step:
        done = seen.done or "no action was needed"
        return replace(seen, recovered=True, again_s=0.0, done=done)
    return None


def _trains(run: Mapping[str, Any], within_s: float) -> bool:
    """Return whether every host has reported, every task runs, and this generation has reported a step."""
    return (
        run["phase"] == "RUNNING"
        and run["global_step"] is not None
        and all(host["link"] == "CONNECTED" and host["heard_age_s"] < within_s for host in run["hosts"])
        and all(task["phase"] == "RUNNING" for task in run["tasks"])
    )


def _measured(seen: Outcome, client: Client, run: Mapping[str, Any], after: int) -> Outcome:
    """Add the steps that all restarts since then lost (None if one is unknown), and what was rescued.

    They are taken from the run's events: the last status before the fault may be older than the last step.
    """
    events = _events(client, run, after)
    lost_steps = [
        event["data"].get("steps_lost")
        for event in events
        if event["kind"] in (NoteKind.RESUMED.value, NoteKind.FROM_START.value)
    ]
    rescued = [event["message"] for event in events if event["kind"] == NoteKind.RESCUED.value]
    done = "; ".join(filter(None, (seen.done, *rescued)))
    return replace(seen, lost=None if None in lost_steps else sum(lost_steps), done=done)


def _events(client: Client, run: Mapping[str, Any], after: int) -> list[dict[str, Any]]:
    return client.get("/v1/events", {"name": str(run["run_id"]), "after": after}).get("events") or []
