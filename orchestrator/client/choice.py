"""Finds the run that a person means: by name, by id, or the only one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from orchestrator.core.errors import OrchestratorError, UsageError
from orchestrator.head.api.client import Client

TERMINAL_PHASES = ("SUCCEEDED", "FAILED", "KILLED")

START_ONE = "`orch up FILE` starts one"
"""The hint if there is no run yet."""


def is_active(run: Mapping[str, Any]) -> bool:
    """Return whether the run has not ended."""
    return run.get("phase") not in TERMINAL_PHASES


def runs_of(client: Client) -> list[dict[str, Any]]:
    """Return all runs that the coordinator knows, oldest first."""
    return runs_in(client.get("/v1/status"))


def runs_in(status: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the runs of a status document."""
    runs = status.get("runs")
    return [run for run in runs if isinstance(run, dict)] if isinstance(runs, list) else []


def find(runs: Iterable[Mapping[str, Any]], name: str) -> dict[str, Any]:
    """Return the run with this id, or the newest with this name. Raises UsageError if there is none."""
    candidates = [dict(run) for run in runs if name in (run.get("run_id"), run.get("name"))]
    if not candidates:
        raise no_such_run(name, [str(run.get("name")) for run in runs])
    # An active run is always newer than an ended one of its name.
    active = [run for run in candidates if is_active(run)]
    return (active or candidates)[-1]


def find_or_newest(runs: Sequence[Mapping[str, Any]], name: str | None) -> dict[str, Any]:
    """Return the run with this name; without a name the newest active run, or else the newest run."""
    if name is not None:
        return find(runs, name)
    if not runs:
        raise OrchestratorError("there are no runs yet", hint=START_ONE)
    return dict(([run for run in runs if is_active(run)] or list(runs))[-1])


def to_read(
    client: Client, name: str | None, runs: Sequence[Mapping[str, Any]] | None = None
) -> dict[str, Any]:
    """Return the run as `find_or_newest`, or one that has ended so long ago that only its records are kept.

    Args:
        runs: those that the coordinator holds, if they are known already.
    """
    runs = runs_of(client) if runs is None else runs
    if name is not None and not any(name in (run.get("run_id"), run.get("name")) for run in runs):
        with contextlib.suppress(UsageError):
            return find(client.get("/v1/status", {"name": name}).get("runs") or [], name)
    return find_or_newest(runs, name)


def only_active(runs: Iterable[Mapping[str, Any]], command: str) -> dict[str, Any]:
    """Return the only active run. Raises UsageError if several are active, so that `command` must name one."""
    active = [dict(run) for run in runs if is_active(run)]
    if not active:
        raise OrchestratorError("no run is active", hint="`orch status` shows the runs that have ended")
    if len(active) > 1:
        names = [str(run.get("name")) for run in active]
        raise UsageError(
            f"{len(active)} runs are active: {', '.join(names)}",
            hint=f"name one: `orch {command} {names[0]}`",
        )
    return active[0]


def hosts_of(run: Mapping[str, Any]) -> list[str]:
    """Return the names of the run's hosts, spares included."""
    return [str(host.get("host")) for host in run.get("hosts") or []]


def no_such_run(name: str, known: Iterable[str]) -> UsageError:
    """Return the error for an unknown name, with a similar known name."""
    from difflib import get_close_matches

    names = sorted(set(known))
    close = get_close_matches(name, names, n=1)
    hint = (
        f"did you mean {close[0]!r}?" if close else f"known runs: {', '.join(names)}" if names else START_ONE
    )
    return UsageError(f"no run is named {name!r}", hint=hint)


def status_of(client: Client, run: Mapping[str, Any]) -> dict[str, Any]:
    """Ask the coordinator for the current status of exactly this run."""
    runs = client.get("/v1/status", {"name": str(run["run_id"])}).get("runs")
    return find(runs if isinstance(runs, list) else [], str(run["run_id"]))
