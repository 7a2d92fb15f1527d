"""`orch completion`: print the completion script of a shell."""

from __future__ import annotations

import click
from click.shell_completion import BashComplete, get_completion_class

from orchestrator.cli.help import orch_command
from orchestrator.cli.session import Session

_VARIABLE = "_ORCH_COMPLETE"


_BASH = """\
%(complete_func)s() {
    local IFS=$'\\n' response completion type value word before=""
    local -a words=()

    # Bash cuts words at colons, and tasks have one: worker:0.
    for word in "${COMP_WORDS[@]:0:COMP_CWORD+1}"; do
        if [[ ${#words[@]} -gt 0 && ( $word == :* || ${words[-1]} == *: ) ]]; then
            words[-1]+=$word
        else
            words+=("$word")
        fi
    done
    word=${words[-1]}
    if [[ $word == *:* && $COMP_WORDBREAKS == *:* ]]; then
        before=${word%%"${word##*:}"}
    fi

    response=$(env COMP_WORDS="${words[*]}" COMP_CWORD=$((${#words[@]} - 1)) %(complete_var)s=bash_complete "$1")
    for completion in $response; do
        IFS=',' read -r type value <<< "$completion"
        case $type in
            dir) COMPREPLY=(); compopt -o dirnames ;;
            file) COMPREPLY=(); compopt -o default ;;
            plain) COMPREPLY+=("${value#"$before"}") ;;
        esac
    done
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""


class Bash(BashComplete):
    """Click's completion for bash, for words with a colon too."""

    source_template = _BASH


@orch_command(
    examples=[
        ("orch completion bash > ~/.local/share/bash-completion/completions/orch", "Install it for bash"),
        ("orch completion zsh > ~/.zfunc/_orch", "For zsh, where ~/.zshrc has ~/.zfunc in fpath"),
        ("orch completion fish > ~/.config/fish/completions/orch.fish", "For fish"),
    ],
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(session: Session, shell: str) -> None:
    """Print the completion script of SHELL. It completes commands, options, and the names of runs, hosts and tasks."""
    from orchestrator.cli.main import cli

    kind = Bash if shell == "bash" else get_completion_class(shell)
    assert kind is not None
    session.put(kind(cli, {}, "orch", _VARIABLE).source())
