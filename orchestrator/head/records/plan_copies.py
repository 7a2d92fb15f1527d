"""The head's own copy of each run's plan, beside its logs, for the case that the journal is lost.

It exists from a run's submission until its end, so a copy also means that the run may go on. A mark beside the socket
means the same, and survives when the state directory is restored from an old copy.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection

from pydantic import TypeAdapter, ValidationError

from orchestrator.both import durable
from orchestrator.core.plan import Plan
from orchestrator.core.words import counted
from orchestrator.head.journal import archive
from orchestrator.head.node.paths import Paths

_NAME = "plan.json"
_ASIDE = ".lost"
_PLAN: TypeAdapter[Plan] = TypeAdapter(Plan)


def keep(paths: Paths, run_id: str, plan: Plan) -> None:
    """Write the copy, durably, and the mark. The run's directory is there. Raises OSError."""
    durable.write(_path(paths, run_id), _PLAN.dump_json(plan))
    os.makedirs(_marks(paths), mode=0o700, exist_ok=True)
    durable.write(os.path.join(_marks(paths), run_id), os.fsencode(paths.state_dir))


def remove(paths: Paths, run_id: str) -> None:
    """Remove the copy of a run that has ended, and its mark. Raises OSError."""
    for path in (_path(paths, run_id), _path(paths, run_id) + _ASIDE, os.path.join(_marks(paths), run_id)):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def plans_of_runs(paths: Paths) -> dict[str, Plan | None]:
    """Return by run id the plans of runs that may go on; None for one that cannot be read."""
    return {name: _read(_path(paths, name)) for name in _runs(paths) if os.path.exists(_path(paths, name))}


def set_aside(paths: Paths, run_id: str) -> None:
    """Keep the copy for `orch recover` only: a person knows that the journal does not have the run. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(_marks(paths), run_id))
    with contextlib.suppress(FileNotFoundError):
        os.replace(_path(paths, run_id), _path(paths, run_id) + _ASIDE)


def recoverable_plans(paths: Paths) -> dict[str, Plan]:
    """Return by run id the plans that can be read, also of runs that were set aside."""
    plans = {name: _read(_path(paths, name)) or _read(_path(paths, name) + _ASIDE) for name in _runs(paths)}
    return {name: plan for name, plan in plans.items() if plan is not None}


def marked(paths: Paths) -> set[str]:
    """Return the runs that began with this state directory and may go on, according to the marks beside the socket."""
    own = os.fsencode(paths.state_dir)
    run_ids = set()
    with contextlib.suppress(OSError):
        for name in os.listdir(_marks(paths)):
            with open(os.path.join(_marks(paths), name), "rb") as file:
                run_ids |= {name} if file.read() == own else set()
    return run_ids


def missing(paths: Paths, known: Collection[str]) -> list[str]:
    """Return a sentence for each run that began here and is not among the known runs of the journal.

    Old ended runs have left it, but the newest stay: a journal without any was removed, or a person has removed them.
    """
    begun = marked(paths)
    lost = [
        f"{run_id} was begun on this head node, and its journal does not have it: the journal was damaged, or came "
        "back from an old copy. Its tasks may be training; `orch coordinator stop` and `orch recover --hosts FILE` "
        "take it up"
        for run_id in sorted(begun - set(known))
    ]
    left = [] if known else sorted(set(_runs(paths)) - begun - set(archive.run_ids(paths)))
    if left:
        lost.append(
            f"the journal has no run, and {counted(len(left), 'run')} left files in {paths.runs}, {left[-1]} among "
            "them: the journal was removed or replaced. Put it back from a copy, or remove those files if nobody "
            "needs their logs"
        )
    return lost


def _marks(paths: Paths) -> str:
    return os.path.join(paths.runtime_dir, "runs")


def _runs(paths: Paths) -> list[str]:
    try:
        return sorted(os.listdir(paths.runs))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _path(paths: Paths, run_id: str) -> str:
    return os.path.join(paths.run_dir(run_id), _NAME)


def _read(path: str) -> Plan | None:
    try:
        with open(path, "rb") as file:
            return _PLAN.validate_json(file.read())
    except (OSError, ValidationError):
        return None
