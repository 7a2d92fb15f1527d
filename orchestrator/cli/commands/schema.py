"""`orch schema`: the JSON Schema of cluster.yaml."""

from __future__ import annotations

import click

from orchestrator.cli.session import Session


@click.command()
@click.pass_obj
def command(session: Session) -> int:
    """Print the JSON Schema of cluster.yaml. Editors complete and check by it."""
    from orchestrator.spec.models import json_schema

    session.put_json(json_schema())
    return 0
