"""`orch schema`: print the JSON Schema of cluster.yaml."""

from __future__ import annotations

import click

from orchestrator.cli.help import Command
from orchestrator.cli.session import Session


@click.command(
    cls=Command,
    examples=[
        ("orch schema > schema.json", "Write the schema to a file"),
        (
            "orch schema > ~/.config/orch.schema.json",
            "For all your specs; each begins with `# yaml-language-server: $schema=PATH`",
        ),
    ],
)
@click.pass_obj
def command(session: Session) -> int:
    """Print the JSON Schema of cluster.yaml. Editors complete and check specs with it."""
    from orchestrator.spec.models import json_schema

    session.put_json(json_schema())
    return 0
