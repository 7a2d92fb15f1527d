"""`orch why`: what went wrong first, who followed, what was done, and what a person can do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import click

from orchestrator.adapters.head.client import Client
from orchestrator.adapters.head.runlogs import RunLogs, run_name
from orchestrator.cli import causes
from orchestrator.cli.render import is_active
from orchestrator.cli.run_choice import find, no_such_run, run_argument, runs_of
from orchestrator.cli.session import Session
from orchestrator.core.errors import CoordinatorUnreachable, OrchestratorError


@dataclass(frozen=True, slots=True)
class Request:
    """Which run; None: the newest one that is active, else the newest."""

    name: str | None
    of_all: bool = False
    """The ends of all generations, not only of the last that ended badly."""


def run(request: Request, session: Session) -> dict[str, Any]:
    """The document; without a coordinator what it last put down, of which the phase is not known."""
    try:
        document = _asked(request, session.client())
    except CoordinatorUnreachable as e:
        document = _on_the_disk(request, RunLogs(session.paths.state_dir))
        session.say(f"{e}: this is what it put down before")
    if not request.of_all:
        document["first_causes"] = document["first_causes"][-1:]
    return document


def _asked(request: Request, client: Client) -> dict[str, Any]:
    runs = runs_of(client)
    if request.name is None:
        if not runs:
            raise OrchestratorError("there are no runs yet", hint="`orch up FILE` starts one")
        chosen = ([run for run in runs if is_active(run)] or runs)[-1]
    else:
        chosen = find(runs, request.name)
    return client.get(f"/v1/runs/{chosen['run_id']}/why")


def _on_the_disk(request: Request, logs: RunLogs) -> dict[str, Any]:
    run_id = logs.newest(request.name)
    if run_id is None:
        if request.name is None:
            raise OrchestratorError("no run has left anything here", hint="`orch up FILE` starts one")
        raise no_such_run(request.name, [run_name(found) for found in logs.runs()])
    return {
        "schema": 1,
        "name": run_name(run_id),
        "run_id": run_id,
        "phase": None,
        "reason": None,
        "first_causes": logs.first_causes(run_id),
    }


@click.command()
@run_argument()
@click.option("--all", "of_all", is_flag=True, help="Of every generation that ended, the oldest first.")
@click.option("--json", "as_json", is_flag=True, help="The document, for scripts.")
@click.pass_obj
def command(session: Session, name: str | None, of_all: bool, as_json: bool) -> int:
    """Say what went wrong first in a run, who followed, what was done, and what you can do.

    Without a NAME: of the run that is active, else of the newest. Works without a coordinator too.
    """
    document = run(Request(name, of_all), session)
    if as_json:
        session.put_json(document)
    else:
        session.put(causes.why(document, session.paint, width=session.width))
    return 0
