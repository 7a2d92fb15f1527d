"""The last recorded state of the runs, from the journal, for use while no coordinator answers."""

from __future__ import annotations

import os
from typing import Any

from orchestrator.core import conflicts
from orchestrator.core.errors import JournalError, UsageError
from orchestrator.head.coordinator.status import SCHEMA, run_document
from orchestrator.head.journal import reading
from orchestrator.head.node.paths import Paths
from orchestrator.head.records import plan_copies
from orchestrator.head.records.accounts import Accounts
from orchestrator.protocol import measures

_NOT_KNOWN = dict.fromkeys(("heartbeat_age_s", *measures.TASK))
"""The fields of a task that only heartbeats have."""


def status(
    paths: Paths,
    *,
    now: float,
    accounts: Accounts | None = None,
    last_answer: tuple[dict[str, Any], float] | None = None,
) -> dict[str, Any] | None:
    """Return the recorded status document, with `recorded_age_s`; None if nothing can be read.

    The journal has decisions but not every heartbeat, so the tasks may be further.

    Args:
        now: the Unix time.
        accounts: the accounts of the runs' time, if the caller has them already.
        last_answer: the coordinator's last status, and when it arrived (Unix time). It is used for runs without newer
            decisions in the journal; without it, the step is the last one in the run's history.
    """
    written = [_written(paths.journal + suffix) for suffix in ("", "-wal")]
    try:
        contents = reading.read_runs(paths.journal)
        kept = contents.kept
    except JournalError:
        return None
    if not any(written):
        return None
    age_s = round(max(0.0, now - max(written)), 1)
    accounts = accounts or Accounts(paths.journal, paths.run_dir, clock=lambda: now - age_s)
    times = accounts.accounts_of([entry.run.run_id for entry in kept])
    runs = [run_document(entry.run, now=entry.written_at + age_s, times=times) for entry in kept]
    live = (
        {run["run_id"]: aged(run, now - last_answer[1]) for run in last_answer[0].get("runs", ())}
        if last_answer
        else {}
    )
    for run in runs:
        run.update(_without_measurements(run))
        account = times.get(run["run_id"])
        measured = account.generations[-1] if account and account.generations else None
        steps = [run["global_step"]]
        if measured is not None and measured.number == run["generation"]:
            steps.append(measured.last_step)
        run.update(global_step=max((step for step in steps if step is not None), default=None))
    runs = [_newer(run, live.get(run["run_id"])) for run in runs]
    known = [entry.run.run_id for entry in kept] + [entry.run_id for entry in contents.unreadable]
    troubles = plan_copies.missing(paths, known)
    troubles += [f"{entry.sentence}; {conflicts.WAY_BACK}" for entry in contents.set_aside]
    return {
        "schema": SCHEMA,
        "runs": runs,
        "troubles": troubles,
        "coordinator": None,
        "recorded_age_s": age_s,
    }


def archived(paths: Paths, run_id: str, *, now: float, accounts: Accounts) -> dict[str, Any]:
    """Return the document of a run that has left the journal. Raises UsageError if there is none.

    Args:
        now: the Unix time.
    """
    kept = reading.archived(paths, run_id)
    if kept is None:
        raise UsageError(f"there is no run {run_id!r}", hint="`orch status` shows all")
    times = accounts.accounts_of([kept.run.run_id])
    document = run_document(kept.run, now=kept.instant(now), times=times)
    return {**document, **_without_measurements(document)}


def _without_measurements(run: dict[str, Any]) -> dict[str, Any]:
    """Return the parts of a run's document that only heartbeats know, as unknown."""
    tasks = [{**task, **_NOT_KNOWN} for task in run["tasks"]]
    return {"steps_per_s": None, "eta_s": None, "bottleneck": None, "tasks": tasks}


def aged(document: Any, by_s: float) -> Any:
    """Return the document with all ages increased by this many seconds.

    >>> aged({"phase_age_s": 2.0, "tasks": [{"heartbeat_age_s": None}]}, 3.0)
    {'phase_age_s': 5.0, 'tasks': [{'heartbeat_age_s': None}]}
    """
    if isinstance(document, list):
        return [aged(each, by_s) for each in document]
    if not isinstance(document, dict):
        return document
    return {
        name: round(value + by_s, 1) if name.endswith("_age_s") and value is not None else aged(value, by_s)
        for name, value in document.items()
    }


def _newer(run: dict[str, Any], live: dict[str, Any] | None) -> dict[str, Any]:
    """Return the run from the coordinator's last status, unless the journal has a later decision."""
    decided = ("phase", "generation", "restarts")
    if live is None or any(run[name] != live[name] for name in decided):
        return run
    return live


def _written(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0
