"""`orch export slurm`: print the batch script, for those who want to keep it."""

from __future__ import annotations

import click

from orchestrator.cli.help import Command
from orchestrator.cli.session import Session


@click.command(
    "slurm",
    cls=Command,
    examples=[
        ("orch export slurm cluster.yaml", "Print the batch script of a run"),
        ("orch export slurm cluster.yaml --json", "As a document, for scripts"),
    ],
)
@click.argument("file", type=click.Path(), metavar="FILE")
@click.option("--json", "as_json", is_flag=True, help="Print a document with the script.")
@click.pass_obj
def command(session: Session, file: str, as_json: bool) -> int:
    """Print the script that `orch up --on slurm FILE` submits. Nothing is written or submitted."""
    from orchestrator.client.on_slurm import script_of

    script = script_of(file, session)
    if as_json:
        session.put_json({"schema": 1, "script": script})
    else:
        session.put(script.rstrip())
    return 0
