"""`orch completion`: print the completion script of a shell."""

from __future__ import annotations

import click

from orchestrator.cli.help import Command
from orchestrator.cli.session import Session

_VARIABLE = "_ORCH_COMPLETE"


@click.command(
    cls=Command,
    examples=[
        ("orch completion bash > ~/.local/share/bash-completion/completions/orch", "Install it for bash"),
        ("orch completion zsh > ~/.zfunc/_orch", "For zsh, where ~/.zshrc has ~/.zfunc in fpath"),
        ("orch completion fish > ~/.config/fish/completions/orch.fish", "For fish"),
    ],
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_obj
def command(session: Session, shell: str) -> int:
    """Print the completion script of SHELL. It completes commands, options, and the names of runs, hosts and tasks."""
    from click.shell_completion import get_completion_class

    from orchestrator.cli.main import cli

    kind = get_completion_class(shell)
    assert kind is not None
    session.put(kind(cli, {}, "orch", _VARIABLE).source())
    return 0
