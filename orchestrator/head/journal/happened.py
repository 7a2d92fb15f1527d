"""What happened in runs, as people are told it: the events and first causes in a journal or a run's own file."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from orchestrator.head.journal.values import checksum

Read = Callable[[str, Sequence[object]], list[tuple[Any, ...]]]
"""Reads the rows of a query with its values."""


def events(read: Read, *, name: str | None = None, after: int = 0, limit: int = 1000) -> list[dict[str, Any]]:
    """Return what `orch events` shows, in order: the events of one run (by its name or id), or of all."""
    rows = read(
        "SELECT seq, time, run_id, name, kind, task, generation, message, data, decision, sum FROM events "
        "WHERE seq > ? AND (? IS NULL OR name = ? OR run_id = ?) ORDER BY seq LIMIT ?",
        (after, name, name, name, limit),
    )
    return [_shown(*row) for row in rows]


def first_causes(read: Read, run_id: str) -> list[dict[str, Any]]:
    """Return what ended the run's generations and its individually restarted tasks, oldest first."""
    rows = read(
        "SELECT json_extract(data, '$.first_cause'), time FROM events WHERE run_id = ? AND "
        "json_extract(data, '$.first_cause') IS NOT NULL ORDER BY seq",
        (run_id,),
    )
    found, since = [], dict[tuple[Any, Any], float]()
    for text, time in rows:
        cause = json.loads(text)
        # No host's clock tells when a network broke: the first event that names the cause does
        said_at = datetime.fromisoformat(time).timestamp()
        began = since.setdefault((cause.get("generation"), cause.get("task")), said_at)
        found.append({**cause, "ended_time": cause.get("ended_time") or began})
    return found


def _shown(seq: int, *row: Any) -> dict[str, Any]:
    """Return an event as `orch events` shows it. If its checksum is wrong, its message says so."""
    time, run, _, kind, task, generation, message, data, decision, total = row
    if checksum(row[:-1]) != total:
        message, data = f"(this event was changed on the disk: its checksum is wrong) {message}", "{}"
    shown = {"seq": seq, "time": time, "run": run, "kind": kind, "task": task, "generation": generation}
    return {**shown, "message": message, "data": json.loads(data), "decision": decision}
