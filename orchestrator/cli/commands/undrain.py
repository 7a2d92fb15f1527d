"""`orch undrain`: a host that was drained or quarantined may be given tasks again."""

from __future__ import annotations

import click

from orchestrator.cli.commands.drain import Request, run
from orchestrator.cli.run_choice import complete_host, complete_run
from orchestrator.cli.session import Session
from orchestrator.cli.terminal import printable


@click.command()
@click.argument("host", shell_complete=complete_host)
@click.option(
    "--name", metavar="RUN", shell_complete=complete_run, help="The run, where several have that host."
)
@click.option("--json", "as_json", is_flag=True, help="The host's state, as a document.")
@click.pass_obj
def command(session: Session, host: str, name: str | None, as_json: bool) -> int:
    """Let HOST in again, whether it was drained or quarantined.

    A gang that went on with fewer workers grows back at its next verified checkpoint; else HOST is a spare.
    """
    found = run(Request(host, name, verb="undrain"), session)
    if as_json:
        session.put_json(found)
    else:
        session.put(
            printable(f"{host} is {found.get('state')} for {found.get('run_id')}; it may be given tasks")
        )
    return 0
