"""`orch events`: show what happened, and when."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import click

from orchestrator.cli import render
from orchestrator.cli.help import Command
from orchestrator.cli.run_choice import find, run_argument, runs_of, status_of
from orchestrator.cli.session import Session

_WAIT_S = 10.0


@dataclass(frozen=True, slots=True)
class Request:
    """Whose events (None: of all runs), after which one, and whether to wait for more."""

    name: str | None
    after: int
    follow: bool


def run(request: Request, session: Session) -> Iterator[dict[str, Any]]:
    """Yield the events in order; with `follow` also new ones, until the run has ended."""
    client = session.client()
    query: dict[str, str | int | float] = {"after": request.after}
    chosen = None if request.name is None else find(runs_of(client), request.name)
    if chosen is not None:
        query["name"] = str(chosen["name"])
    wait_s = 0.0
    while True:
        # The status before the events: all events of a run that has ended are then in the next answer.
        ended = chosen is not None and not render.is_active(status_of(client, chosen))
        document = client.get(
            "/v1/events", {**query, "wait_s": 0.0 if ended else wait_s}, timeout_s=_WAIT_S + 30
        )
        found = document.get("events") or []
        # A name means all runs of that name, an id only one.
        one = chosen is not None and request.name == chosen["run_id"]
        yield from (event for event in found if not one or event.get("run") == request.name)
        if found:
            query["after"] = found[-1]["seq"]
        # An answer is one page: ask until one is empty.
        if not found and (ended or not request.follow):
            return
        wait_s = _WAIT_S if request.follow else 0.0


@click.command(
    cls=Command,
    examples=[
        ("orch events mnist", "Show what happened to the run mnist"),
        ("orch events mnist --follow", "Show new events too, until the run ends"),
        ("orch events --json --after 120", "Print the events after number 120 of all runs as JSON lines"),
    ],
)
@run_argument()
@click.option("-f", "--follow", is_flag=True, help="Wait for new events until the run ends.")
@click.option("--after", type=int, default=0, metavar="SEQ", help="Only events after this number.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines.")
@click.pass_obj
def command(session: Session, name: str | None, follow: bool, after: int, as_json: bool) -> int:
    """Show what happened, in order. Times are UTC. Without NAME: the events of all runs."""
    for found in run(Request(name, after, follow), session):
        if as_json:
            session.put_json(found, indent=None)
        else:
            who = "" if name else f"{found.get('run')}  "
            session.put(f"{who}{render.event(found, session.paint)}")
    return 0
