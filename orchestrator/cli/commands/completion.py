"""`orch completion`: the shell's completion script."""

from __future__ import annotations

import click

from orchestrator.cli.session import Session

_VARIABLE = "_ORCH_COMPLETE"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_obj
def command(session: Session, shell: str) -> int:
    """Print the completion script. For bash: eval "$(orch completion bash)"."""
    from click.shell_completion import get_completion_class

    from orchestrator.cli.main import cli

    kind = get_completion_class(shell)
    assert kind is not None
    session.put(kind(cli, {}, "orch", _VARIABLE).source())
    return 0
