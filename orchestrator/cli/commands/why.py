"""`orch why`: show the first cause of a failure, the followers, what orch did, and what a person can do."""

from __future__ import annotations

import click

from orchestrator.cli.help import json_option, orch_command
from orchestrator.cli.run_choice import run_argument
from orchestrator.cli.session import Session
from orchestrator.cli.show import causes
from orchestrator.client.asking import why


@orch_command(
    about_runs=True,
    examples=[
        ("orch why", "Explain the last failure of the active run, else of the newest"),
        ("orch why mnist --all", "Explain the end of every generation of the run mnist"),
    ],
)
@run_argument()
@click.option("--all", "of_all", is_flag=True, help="Every generation that failed, oldest first.")
@json_option("Print the document, for scripts.")
def command(session: Session, name: str | None, of_all: bool) -> None:
    """Show why a run failed or restarted: which task failed first, what that means, what orch did, what you can do.

    Without NAME: the active run, or else the newest. Works without a coordinator.
    """
    document = why(session, name)
    if not of_all:
        document["first_causes"] = document["first_causes"][-1:]
    session.answer(document, causes.why(document, session.paint, width=session.width))
