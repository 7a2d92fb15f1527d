"""Watches a run come back from a fault: when it was noticed, when it trained again, how many steps it cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.adapters.head.client import Client
from orchestrator.cli import render
from orchestrator.cli.run_choice import status_of
from orchestrator.cli.session import Session
from orchestrator.core.errors import CoordinatorUnreachable
from orchestrator.core.faults import KINDS

LOOK_EVERY_S = 0.05

HEARD_AFTER_S = 0.5
"""A host was heard since the fault only where it was heard so much later: what was on its way still came."""

_NOT_A_NOTICE = ("chaos", "checkpoint", "checkpoint-rejected", "epoch")
"""Events that would have come without the fault."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One row of the table. Seconds are of this machine's clock, from just before the fault was ordered."""

    kind: str
    target: str
    step: int
    """The position when it was injected."""
    recovered: bool
    noticed_s: float | None
    """Until the first event that it caused; None where there was nothing to notice."""
    again_s: float | None
    """Until the first step of the restarted tasks; 0 where training never stopped, None where it did not come back."""
    lost: int | None
    """Steps that were trained again."""
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
    """Look until it trains again, has ended, or `timeout_s` is over (after the fault's own end).

    Args:
        before: the run's status just before; `after` its last event's number, `at` the moment.
        for_s: how long the fault lasts; 0 for one that is over at once.
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
                return outcome
            if late:
                return replace(seen, done=str(run["reason"]))
        session.pause(LOOK_EVERY_S)


def _notice(seen: Outcome, client: Client, run: Mapping[str, Any], after: int, elapsed: float) -> Outcome:
    found = client.get("/v1/events", {"name": str(run["run_id"]), "after": after}).get("events") or []
    for event in found:
        if event["kind"] not in _NOT_A_NOTICE:
            return replace(seen, noticed_s=elapsed, done=str(event.get("message") or event["kind"]))
    return seen


def _conclusion(
    seen: Outcome, before: Mapping[str, Any], run: Mapping[str, Any], elapsed: float, *, over: bool
) -> Outcome | None:
    """None while it is not known. `over`: the fault is, and need not restart anything."""
    if not render.is_active(run):
        succeeded = run["phase"] == "SUCCEEDED"
        return replace(seen, recovered=succeeded, done=f"{seen.done}; the run is {run['phase']}".lstrip("; "))
    if not _trains(run, elapsed - HEARD_AFTER_S):
        return None
    if _restarted(before, run):
        return replace(seen, recovered=True, again_s=elapsed, lost=_lost(before, run, seen.step))
    if over and int(run["global_step"]) > seen.step:
        done = seen.done or "nothing had to be done"
        return replace(seen, recovered=True, again_s=0.0, lost=0, done=done)
    return None


def _restarted(before: Mapping[str, Any], run: Mapping[str, Any]) -> bool:
    old = {task["task"]: task["generation"] for task in before["tasks"]}
    return any(task["generation"] > old.get(task["task"], 0) for task in run["tasks"])


def _trains(run: Mapping[str, Any], within_s: float) -> bool:
    """Every host heard, every task running, and the position known: it was reported in this generation."""
    return (
        run["phase"] == "RUNNING"
        and run["global_step"] is not None
        and all(host["link"] == "CONNECTED" and host["heard_age_s"] < within_s for host in run["hosts"])
        and all(task["phase"] == "RUNNING" for task in run["tasks"])
    )


def _lost(before: Mapping[str, Any], run: Mapping[str, Any], step: int) -> int:
    """Steps between the position at the fault and the checkpoint that the gang went back to."""
    if run["generation"] == before["generation"]:
        return 0  # only a task that is restarted alone
    return max(0, step - int((run.get("seed") or {}).get("global_step") or 0))
