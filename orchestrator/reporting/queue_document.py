"""The document of the queue, for `orch queue` and for the status of waiting runs. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

from orchestrator.core.launching.placement import in_words
from orchestrator.core.plan import PRIORITIES
from orchestrator.core.pool import NOTHING, Known
from orchestrator.core.queue import QueueTurn, turns
from orchestrator.core.state.phase_states import Queued
from orchestrator.core.state.run import Run

SCHEMA = 1


def queue_document(
    runs: Mapping[str, Run], now: float, known: Known = NOTHING, reckoned: Sequence[QueueTurn] = ()
) -> dict[str, Any]:
    """Return the waiting runs in order, with what they wait for, since when, and their expected begin.

    `reckoned` are the turns as they were decided upon last. They hold while the same runs wait.
    """
    waiting = {run.run_id for run in runs.values() if isinstance(run.phase_state, Queued)}
    if {turn.ask.run_id for turn in reckoned} != waiting:
        reckoned = turns(runs.values(), now, known)
    return {"schema": SCHEMA, "queue": [_turn(turn, runs[turn.ask.run_id], now) for turn in reckoned]}


def add_turns(shown: Sequence[dict[str, Any]], queue: Mapping[str, Any]) -> None:
    """Add what waiting runs wait for to their status."""
    turns = {turn["run_id"]: turn for turn in queue["queue"]}
    for run in shown:
        if run["run_id"] in turns:
            run["reason"] = run["reason_rest"] = turns[run["run_id"]]["reason"]


def _others(turn: QueueTurn, queued: Queued) -> str | None:
    """Return what others hold of what it needs; None if nothing is known of that."""
    return (turn.ask.others if turn.ask.plan else turn.ask.others and queued.others) or None


def _turn(turn: QueueTurn, run: Run, now: float) -> dict[str, Any]:
    queued = run.within(Queued)
    return {
        "run_id": run.run_id,
        "name": run.plan.name,
        "priority": PRIORITIES[min(queued.priority, len(PRIORITIES) - 1)],
        "waited_s": round(now - queued.since_at, 1),
        "waits_for": [{"run_id": run_id, "needs": list(needs)} for run_id, needs in turn.waits_for],
        "others": _others(turn, queued),
        # Of a run whose place is still to be chosen: what it asks for; and the place that is held back for it, if any.
        "needs": in_words(turn.ask.plan.needs) if turn.ask.plan else None,
        "place": [
            {"task": str(task.id), "host": task.host, "gpus": list(task.gpus)}
            for task in turn.ask.place.tasks
        ]
        if turn.ask.place
        else None,
        "begins_in_s": round(turn.begins_at - now, 1) if turn.begins_at < inf else None,
        "gives_up_in_s": round(queued.give_up_at - now, 1) if queued.give_up_at is not None else None,
        "time_limit_s": run.plan.time_limit_s,
        "reason": turn.sentence(now) + (f"; {queued.why}" if queued.why and not turn.ask.others else ""),
    }
