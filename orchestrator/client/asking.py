"""Queries about runs: events, causes of failures, and stacks of tasks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.client.choice import is_active, status_of, to_read
from orchestrator.client.environment import Environment, is_not_running
from orchestrator.client.known_run import known_run as recorded_run
from orchestrator.core.errors import CoordinatorUnreachable, OrchestratorError, UsageError
from orchestrator.head.api.client import Client

_EVENTS_WAIT_S = 10.0
_STACKS_TIMEOUT_S = 60.0


def events(
    client: Client, chosen: Mapping[str, Any] | None, *, after: int, follow: bool, by_id: bool
) -> Iterator[dict[str, Any]]:
    """Yield the events in order; with `follow` also new ones until the run has ended.

    Args:
        client: of the coordinator.
        chosen: the run; None for all runs, which never end.
        after: the number of the event before the first one.
        follow: whether to wait for more.
        by_id: only events of exactly this run; else of all runs with its name.
    """
    query: dict[str, str | int | float] = {"after": after}
    if chosen is not None:
        query["name"] = str(chosen["run_id"] if by_id else chosen["name"])
    wait_s = 0.0
    while True:
        # Ask for the status before the events: if the run has ended, the next answer then has all of its events.
        ended = chosen is not None and not is_active(status_of(client, chosen))
        document = client.get(
            "/v1/events", {**query, "wait_s": 0.0 if ended else wait_s}, timeout_s=_EVENTS_WAIT_S + 30
        )
        page = document.get("events") or []
        run_id = chosen["run_id"] if chosen is not None and by_id else None
        yield from (event for event in page if run_id in (None, event.get("run")))
        if page:
            query["after"] = page[-1]["seq"]
        # An answer is one page: ask until one is empty.
        if not page and (ended or not follow):
            return
        wait_s = _EVENTS_WAIT_S if follow else 0.0


def why(environment: Environment, name: str | None) -> dict[str, Any]:
    """Return the document of `orch why --all --json`.

    Without a coordinator it is read from the disk; then only ended runs have a phase and a reason.
    """
    try:
        client = environment.client()
        chosen = to_read(client, name)
        return client.get(f"/v1/runs/{chosen['run_id']}/why")
    except CoordinatorUnreachable as e:
        from orchestrator.client.log_reading import known_run
        from orchestrator.head.records.runlogs import RunLogs, run_name

        logs = RunLogs(environment.paths.state_dir)
        run_id = known_run(logs, name)
        away = "Coordinator not running" if is_not_running(e) else e.message[:1].upper() + e.message[1:]
        environment.say(f"{away}; last recorded state")
        environment.hint(e.hint)
    ended = None
    with contextlib.suppress(OrchestratorError):
        recorded = recorded_run(environment.paths, run_id)
        ended = recorded if recorded.phase.is_terminal else None
    return {
        "schema": 1,
        "name": run_name(run_id),
        "run_id": run_id,
        "phase": ended and ended.phase.value,
        "reason": ended and ended.reason,
        "first_causes": logs.first_causes(run_id),
    }


def stacks(client: Client, chosen: Mapping[str, Any], task: str | None) -> dict[str, str]:
    """Return the Python stacks by task, of all tasks or of a named one."""
    answer = client.post(f"/v1/runs/{chosen['run_id']}/stacks", timeout_s=_STACKS_TIMEOUT_S)
    by_task = {str(task): str(text) for task, text in (answer.get("stacks") or {}).items()}
    if task is None:
        return by_task
    if task not in by_task:
        raise UsageError(
            f"{chosen['run_id']} has no running task {task}", hint=f"its tasks: {', '.join(by_task)}"
        )
    return {task: by_task[task]}
