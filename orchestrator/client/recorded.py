"""The last recorded state of the runs: what the journal says while no coordinator answers."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from orchestrator.core.errors import JournalError
from orchestrator.head.node.paths import Paths

if TYPE_CHECKING:
    from orchestrator.head.records.accounts import Accounts

_NOT_KNOWN = dict.fromkeys(("heartbeat_age_s", "steps_per_s", "cpu_percent", "rss_bytes"))
"""The fields of a task that only its heartbeats tell."""


def status(paths: Paths, *, now: float, accounts: Accounts | None = None) -> dict[str, Any] | None:
    """Return the status document as it was recorded, with `recorded_age_s`; None where nothing can be read.

    The journal keeps decisions and not each heartbeat, so the tasks may well be further.

    Args:
        now: the Unix time.
        accounts: those of the runs, where somebody has them already.
    """
    from orchestrator.head.coordinator.status import SCHEMA, run_document
    from orchestrator.head.journal import reading as journal_reading
    from orchestrator.head.records import accounts as head_accounts

    written = [_written(paths.journal + suffix) for suffix in ("", "-wal")]
    try:
        kept = journal_reading.peek(paths.journal).kept
    except JournalError:
        return None
    if not any(written):
        return None
    age_s = round(max(0.0, now - max(written)), 1)
    accounts = accounts or head_accounts.Accounts(paths.journal, paths.run_dir)
    times = accounts.of_each([one.run.run_id for one in kept])
    runs = [run_document(one.run, now=one.written_at + age_s, times=times) for one in kept]
    for run in runs:
        run.update(steps_per_s=None, tasks=[{**task, **_NOT_KNOWN} for task in run["tasks"]])
    return {"schema": SCHEMA, "runs": runs, "coordinator": None, "recorded_age_s": age_s}


def _written(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0
