"""The head's own copy of each run's plan, beside its logs: what is known of a run although its journal is lost.

It is there from a run's submission until its end, so each copy says as well that a run may go on.
"""

from __future__ import annotations

import contextlib
import os

from pydantic import TypeAdapter, ValidationError

from orchestrator.both import durable
from orchestrator.core.plan import Plan
from orchestrator.head.node.paths import Paths

_NAME = "plan.json"
_ASIDE = ".lost"
_PLAN: TypeAdapter[Plan] = TypeAdapter(Plan)


def keep(paths: Paths, run_id: str, plan: Plan) -> None:
    """Write the copy, durably. The run's directory is there. Raises OSError."""
    durable.write(_path(paths, run_id), _PLAN.dump_json(plan))


def remove(paths: Paths, run_id: str) -> None:
    """Remove the copy of a run that has ended. Raises OSError."""
    for suffix in ("", _ASIDE):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(_path(paths, run_id) + suffix)


def of_runs(paths: Paths) -> dict[str, Plan | None]:
    """Return by run id the plans of runs that may go on; None for one that cannot be read."""
    return {name: _read(_path(paths, name)) for name in _runs(paths) if os.path.exists(_path(paths, name))}


def set_aside(paths: Paths, run_id: str) -> None:
    """Keep the copy for `orch recover` only: a person knows that the journal does not have the run. Raises OSError."""
    os.replace(_path(paths, run_id), _path(paths, run_id) + _ASIDE)


def of_lost(paths: Paths) -> dict[str, Plan]:
    """Return by run id the plans that can be read, also of runs that were set aside."""
    found = {name: _read(_path(paths, name)) or _read(_path(paths, name) + _ASIDE) for name in _runs(paths)}
    return {name: plan for name, plan in found.items() if plan is not None}


def _runs(paths: Paths) -> list[str]:
    try:
        return sorted(os.listdir(paths.runs))
    except FileNotFoundError:
        return []


def _path(paths: Paths, run_id: str) -> str:
    return os.path.join(paths.run_dir(run_id), _NAME)


def _read(path: str) -> Plan | None:
    try:
        with open(path, "rb") as file:
            return _PLAN.validate_json(file.read())
    except (OSError, ValidationError):
        return None
