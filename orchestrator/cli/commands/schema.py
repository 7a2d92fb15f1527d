"""`orch schema`: print the JSON Schema of cluster.yaml."""

from __future__ import annotations

from orchestrator.cli.help import orch_command
from orchestrator.cli.session import Session


@orch_command(
    examples=[
        ("orch schema > schema.json", "Write the schema to a file"),
        (
            "orch schema > ~/.config/orch.schema.json",
            "For all your specs; each begins with `# yaml-language-server: $schema=PATH`",
        ),
    ],
)
def command(session: Session) -> None:
    """Print the JSON Schema of cluster.yaml. Editors complete and check specs with it."""
    from orchestrator.spec.models import json_schema

    session.put_json(json_schema())
