"""`orch events`: what happened, and when."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import click

from orchestrator.cli import render
from orchestrator.cli.run_choice import find, run_argument, runs_of, status_of
from orchestrator.cli.session import Session

_WAIT_S = 10.0


@dataclass(frozen=True, slots=True)
class Request:
    """Whose events (None: of all runs), and from which on."""

    name: str | None
    after: int
    follow: bool


def run(request: Request, session: Session) -> Iterator[dict[str, Any]]:
    """The events, in order. With `follow` also what comes, until the run has ended."""
    client = session.client()
    query: dict[str, str | int | float] = {"after": request.after}
    chosen = None if request.name is None else find(runs_of(client), request.name)
    if chosen is not None:
        query["name"] = str(chosen["name"])
    wait_s = 0.0
    while True:
        # Looked at before the events are asked for: what an ended run had to say is then among them.
        ended = chosen is not None and not render.is_active(status_of(client, chosen))
        document = client.get(
            "/v1/events", {**query, "wait_s": 0.0 if ended else wait_s}, timeout_s=_WAIT_S + 30
        )
        found = document.get("events") or []
        # A name means all runs of it; an id means one.
        one = chosen is not None and request.name == chosen["run_id"]
        yield from (event for event in found if not one or event.get("run") == request.name)
        if found:
            query["after"] = found[-1]["seq"]
        # A page may not be all: asked until there is nothing more.
        if not found and (ended or not request.follow):
            return
        wait_s = _WAIT_S if request.follow else 0.0


@click.command()
@run_argument()
@click.option("-f", "--follow", is_flag=True, help="Wait for more; ends with the run.")
@click.option("--after", type=int, default=0, metavar="SEQ", help="Only later ones than this number.")
@click.option("--json", "as_json", is_flag=True, help="JSON lines.")
@click.pass_obj
def command(session: Session, name: str | None, follow: bool, after: int, as_json: bool) -> int:
    """Show what happened to a run (by default to all), in order. Times are UTC."""
    for found in run(Request(name, after, follow), session):
        if as_json:
            session.put_json(found, indent=None)
        else:
            who = "" if name else f"{found.get('run')}  "
            session.put(f"{who}{render.event(found, session.paint)}")
    return 0
