"""`orch events`: show what happened, and when."""

from __future__ import annotations

import click

from orchestrator.cli.help import json_option, orch_command
from orchestrator.cli.run_choice import run_argument
from orchestrator.cli.session import Session
from orchestrator.cli.show import render
from orchestrator.client.client import Client


@orch_command(
    about_runs=True,
    examples=[
        ("orch events mnist", "Show what happened to the run mnist"),
        ("orch events mnist --follow", "Show new events too, until the run ends"),
        ("orch events mnist --utc", "Show the times as UTC"),
        ("orch events --json --after 120", "Print the events after number 120 of all runs as JSON lines"),
    ],
)
@run_argument()
@click.option("-f", "--follow", is_flag=True, help="Wait for new events until the run ends.")
@click.option("--after", type=int, default=0, metavar="SEQ", help="Only events after this number.")
@click.option("--utc", is_flag=True, help="Print times as UTC. JSON always has them so.")
@json_option("Print JSON lines.")
def command(session: Session, name: str | None, follow: bool, after: int, utc: bool) -> None:
    """Show what happened, in order, in local time. Without NAME: the events of all runs."""
    for event in Client(environment=session).events(name, after=after, follow=follow):
        if session.wants_json:
            session.put_json(event, indent=None)
        else:
            who = "" if name else f"{event.get('run')}  "
            session.put(f"{who}{render.event(event, session.paint, utc=utc)}")
