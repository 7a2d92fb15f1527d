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
_PLAN: TypeAdapter[Plan] = TypeAdapter(Plan)


def keep(paths: Paths, run_id: str, plan: Plan) -> None:
    """Write the copy, durably. The run's directory is there. Raises OSError."""
    durable.write(_path(paths, run_id), _PLAN.dump_json(plan))


def remove(paths: Paths, run_id: str) -> None:
    """Remove the copy of a run that has ended. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(_path(paths, run_id))


def of_runs(paths: Paths) -> dict[str, Plan | None]:
    """Return by run id the plans that are there; None for one that cannot be read."""
    try:
        names = sorted(os.listdir(paths.runs))
    except FileNotFoundError:
        return {}
    return {name: _read(_path(paths, name)) for name in names if os.path.exists(_path(paths, name))}


def _path(paths: Paths, run_id: str) -> str:
    return os.path.join(paths.run_dir(run_id), _NAME)


def _read(path: str) -> Plan | None:
    try:
        with open(path, "rb") as file:
            return _PLAN.validate_json(file.read())
    except (OSError, ValidationError):
        return None
