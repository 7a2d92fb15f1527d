"""`orch why`: show the first cause of a failure, the followers, what orch did, and what a person can do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import click

from orchestrator.cli.help import Command
from orchestrator.cli.run_choice import run_argument
from orchestrator.cli.session import Session
from orchestrator.cli.show import causes
from orchestrator.client.asking import why


@dataclass(frozen=True, slots=True)
class Request:
    """Which run; None: the newest active one, else the newest."""

    name: str | None
    of_all: bool = False
    """The first causes of all generations, not only of the last one that failed."""


def run(request: Request, session: Session) -> dict[str, Any]:
    """Return the document. Without a coordinator it holds what is on the disk; the phase is then None."""
    document = why(session, request.name)
    if not request.of_all:
        document["first_causes"] = document["first_causes"][-1:]
    return document


@click.command(
    cls=Command,
    about_runs=True,
    examples=[
        ("orch why", "Explain the last failure of the active run, else of the newest"),
        ("orch why mnist --all", "Explain the end of every generation of the run mnist"),
    ],
)
@run_argument()
@click.option("--all", "of_all", is_flag=True, help="Every generation that failed, oldest first.")
@click.option("--json", "as_json", is_flag=True, help="Print the document, for scripts.")
@click.pass_obj
def command(session: Session, name: str | None, of_all: bool, as_json: bool) -> int:
    """Show why a run failed or restarted: which task was first, what that means, what orch did, what you can do.

    Without NAME: the active run, else the newest. Works without a coordinator.
    """
    document = run(Request(name, of_all), session)
    if as_json:
        session.put_json(document)
    else:
        session.put(causes.why(document, session.paint, width=session.width))
    return 0
