"""`orch undrain`: let a drained or quarantined host take tasks again."""

from __future__ import annotations

import click

from orchestrator.cli.commands.drain import old_name_option, run
from orchestrator.cli.help import Command
from orchestrator.cli.run_choice import complete_host, run_and
from orchestrator.cli.session import Session
from orchestrator.cli.show.terminal import printable


@click.command(
    cls=Command,
    acts=True,
    about_runs=True,
    examples=[
        ("orch undrain gpu-b", "Let gpu-b take tasks again, of all runs"),
        ("orch undrain mnist gpu-b", "Let gpu-b take tasks of the run mnist"),
    ],
)
@run_and("host", complete_host)
@old_name_option
@click.option("--json", "as_json", is_flag=True, help="Print the host's state as a document.")
@click.pass_obj
def command(session: Session, name: str | None, host: str, old_name: str | None, as_json: bool) -> int:
    """Let HOST take tasks again after a drain or a quarantine.

    A run that continued with fewer workers grows back at its next verified checkpoint; otherwise HOST becomes a
    spare. Without NAME: for all runs, and runs can be placed there again.
    """
    answered = run(name or old_name, host, session, verb="undrain")
    if as_json:
        session.put_json(answered)
    else:
        for of_run in answered.get("runs", [answered]):
            session.put(
                printable(f"{host} is {of_run.get('state')} for {of_run.get('run_id')}; it can take tasks")
            )
        if "runs" in answered:
            session.put(printable(f"runs can be placed on {host}"))
    return 0
