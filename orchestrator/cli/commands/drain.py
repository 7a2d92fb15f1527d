"""`orch drain`: a host is given no task any more, and those that it has move at the next verified checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import click

from orchestrator.adapters.head.client import Client
from orchestrator.cli.run_choice import complete_host, complete_run, find, runs_of, with_host
from orchestrator.cli.session import Session
from orchestrator.cli.terminal import printable


@dataclass(frozen=True, slots=True)
class Request:
    """Which host; without a run, of the only active run that has it."""

    host: str
    name: str | None
    verb: str = "drain"
    now: bool = False


def run(request: Request, session: Session) -> dict[str, Any]:
    """What has become of the host, as the API says it."""
    client: Client = session.client()
    runs = runs_of(client)
    chosen = find(runs, request.name) if request.name else with_host(runs, request.host, request.verb)
    body = {"host": request.host} | ({"now": True} if request.now else {})
    return client.post(f"/v1/runs/{chosen['run_id']}/{request.verb}", body)


def answer(found: dict[str, Any]) -> str:
    """What follows from it."""
    tasks = ", ".join(map(str, found.get("tasks") or []))
    state = f"{found.get('host')} is {found.get('state')} for {found.get('run_id')}"
    if found.get("state") != "drained":
        return state
    if not tasks:
        return f"{state}: it is given no task"
    when = "at the next verified checkpoint" if found.get("checkpoints") else "at the next restart"
    return f"{state}: {tasks} will leave it {when}; `orch drain {found.get('host')} --now` does not wait"


@click.command()
@click.argument("host", shell_complete=complete_host)
@click.option(
    "--name", metavar="RUN", shell_complete=complete_run, help="The run, where several have that host."
)
@click.option(
    "--now", is_flag=True, help="Do not wait for a checkpoint: what was trained since the last one is lost."
)
@click.option("--json", "as_json", is_flag=True, help="The host's state, as a document.")
@click.pass_obj
def command(session: Session, host: str, name: str | None, now: bool, as_json: bool) -> int:
    """Take HOST out of a run: a spare takes its tasks, or fewer workers go on.

    The gang is moved at the next verified checkpoint. Exit 6 when no spare has room and replicas_min does not
    allow fewer. `orch undrain HOST` lets it in again.
    """
    found = run(Request(host, name, now=now), session)
    if as_json:
        session.put_json(found)
    elif now and found.get("tasks"):
        session.put(printable(f"{host} is drained for {found.get('run_id')}: its tasks are being stopped"))
    else:
        session.put(printable(answer(found)))
    return 0
