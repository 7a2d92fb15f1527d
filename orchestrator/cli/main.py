"""The entry point of `orch`: find the command, run it, and turn an error into a sentence and an exit code.

A command's module is imported only when the command is called: `orch status` is used in prompts and loops.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from keyword import iskeyword
from typing import TYPE_CHECKING

import click

from orchestrator import __version__
from orchestrator.cli.help import Command, Group, version_option
from orchestrator.cli.session import Session, StdoutClosed, discard
from orchestrator.core.errors import InvariantViolated, OrchestratorError, SpecError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

PURPOSES = {
    "Run": {
        "validate": "Check cluster specs; print every error with its line.",
        "doctor": "Find what would keep a spec from training on its hosts.",
        "plan": "Show what a cluster spec resolves to, task by task.",
        "up": "Start a run.",
        "kill": "Stop runs, and verify that no process is left.",
    },
    "Inspect": {
        "status": "Show runs, their progress, and what they wait for.",
        "runs": "Show all runs: outcome, last figures, and what differed.",
        "tag": "Give a run tags and a note, by which it is found again.",
        "top": "Show a run live, in this terminal.",
        "why": "Show why a run failed or restarted, and what to do.",
        "logs": "Show the output of the tasks, merged by time.",
        "queue": "Show which runs wait for GPUs, and for which.",
        "hosts": "Show what the hosts have, and who uses it.",
        "events": "Show what happened to a run, and when.",
        "metrics": "Serve the numbers of the runs to Prometheus.",
        "notify": "Send a test message to the recipients of notices.",
        "stacks": "Show the Python stacks of the tasks.",
        "replay": "Replay a run's journal: what would this version decide?",
        "ui": "Serve a page with plots, timeline and logs of the runs.",
        "report": "Write everything about a run into one HTML file.",
        "scale": "Train with several numbers of replicas, and compare.",
        "prove": "Compare several workers with one process, step by step.",
        "diff": "Compare a run with its current spec and code, or another run.",
        "exec": "Run a command on the hosts of a run, or as a task.",
        "ssh": "Open a terminal on a host of a run.",
        "fetch": "Fetch what a run's tasks left: models, tables, plots.",
        "tensorboard": "Fetch a run's TensorBoard files and serve them here.",
    },
    "Repair": {
        "ckpt": "List, verify, pin and roll back checkpoints.",
        "drain": "Move a run off a host at its next step or checkpoint.",
        "undrain": "Let a drained or quarantined host take tasks again.",
        "recover": "Rebuild a lost journal from the hosts.",
        "rm": "Remove ended runs with what they left.",
        "gc": "Find and remove orphans: what unknown runs left behind.",
        "uninstall": "Leave nothing of orch on hosts.",
        "chaos": "Inject faults into a run, and measure its recovery.",
    },
    "Set up": {
        "init": "Examine hosts, and write a cluster.yaml for them.",
        "setup": "Make the Python environment of a spec on its hosts.",
        "trust": "Show the hosts' SSH keys, and add them to known_hosts.",
        "coordinator": "Run, start, stop, restart or show the coordinator.",
        "service": "Run the coordinator as a systemd unit.",
        "import": "Write a cluster.yaml from horovodrun, TF_CONFIG or an inventory.",
        "export": "Write a cluster.yaml as Kubernetes manifests or as a Slurm script.",
        "schema": "Print the JSON Schema of cluster.yaml, for editors.",
        "completion": "Print the completion script of a shell.",
    },
}
"""The commands by purpose, in the order of `orch --help`."""

COMMANDS = [name for commands in PURPOSES.values() for name in commands]

_EXAMPLES = (
    ("orch up cluster.yaml --follow", "Start a run, and show its progress and logs"),
    ("orch status", "Show all runs"),
    ("orch why mnist", "Show why the run mnist failed or restarted"),
)

_SYNONYMS = {
    **dict.fromkeys(("down", "stop", "cancel", "scancel"), "kill"),
    **dict.fromkeys(("delete", "remove", "prune"), "rm"),
    **dict.fromkeys(("run", "start", "submit", "apply", "launch", "sbatch", "mpirun"), "up"),
    **dict.fromkeys(("ps", "jobs", "get"), "status"),
    **dict.fromkeys(("ls", "list", "experiments", "history"), "runs"),
    **dict.fromkeys(("squeue", "waiting"), "queue"),
    **dict.fromkeys(("nodes", "gpus", "nvidia-smi"), "hosts"),
    **dict.fromkeys(("describe", "explain"), "why"),
    **dict.fromkeys(("log", "tail", "attach"), "logs"),
    **dict.fromkeys(("cp", "scp", "download", "pull"), "fetch"),
    **dict.fromkeys(("shell", "login"), "ssh"),
    **dict.fromkeys(("check", "lint"), "validate"),
    **dict.fromkeys(("install", "pip", "venv", "env"), "setup"),
    **dict.fromkeys(("checkpoint", "checkpoints"), "ckpt"),
    "version": "--version",
    "help": "--help",
}
"""Commands of other tools, and the equivalent here. A command of the same name has precedence."""

INTERRUPTED = 130
STDOUT_CLOSED = 141
"""The exit code that a shell shows for a process ended by SIGPIPE."""
BUG = 70


class LazyGroup(Group):
    """The commands by name. Only the called one is imported."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's signature)
        """Return all names, without an import."""
        return COMMANDS

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import the command of this name."""
        if cmd_name not in COMMANDS:
            return None
        module = f"{cmd_name}_" if iskeyword(cmd_name) else cmd_name
        command = import_module(f"orchestrator.cli.commands.{module}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the table: `orch --help` must not import every command."""
        width = max(map(len, COMMANDS))  # one column for all sections
        for purpose, commands in PURPOSES.items():
            with formatter.section(purpose):
                formatter.write_dl([(name.ljust(width), text) for name, text in commands.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete from the table too, and from the group's own options."""
        from click.shell_completion import CompletionItem

        table = {name: text for commands in PURPOSES.values() for name, text in commands.items()}
        items = [
            CompletionItem(name, help=text) for name, text in table.items() if name.startswith(incomplete)
        ]
        return [*items, *click.Command.shell_complete(self, ctx, incomplete)]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Suggest the closest name for an unknown one. click's own suggestions would import every command."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as e:
            from difflib import get_close_matches

            known = _SYNONYMS.get(args[0])
            close = [known] if known else get_close_matches(args[0], COMMANDS, n=1)
            hint = f"; did you mean `orch {close[0]}`?" if close else ""
            raise click.UsageError(f"no such command: {args[0]!r}{hint}", ctx) from e


@click.command(
    cls=LazyGroup,
    params=[version_option(f"orch {__version__}")],
    context_settings={"help_option_names": ["-h", "--help"]},
    examples=_EXAMPLES,
)
def cli() -> None:
    """Run TensorFlow training on plain SSH hosts: start it, watch it, restart it after failures, and explain them.

    `orch COMMAND --help` describes one command, with examples.
    """


def run(argv: Sequence[str], session: Session) -> int:
    """Run one command line, and return its exit code. The only place where errors become text."""
    try:
        # Let the command speak with the coordinator in a Slurm job, where it means a run that is there
        is_there = os.path.isdir(os.path.join(session.paths.state_dir, "slurm"))
        if is_there and any(command.about_runs for _, command in called(argv)):
            from orchestrator.client.on_slurm import chosen

            paths = chosen(session, list(argv[1:]))
            if paths is not None:
                session.paths = paths
        code = cli.main(list(argv), prog_name="orch", standalone_mode=False, obj=session)
    except SpecError as e:
        # One diagnostic per line, `file:line:column: …`, as compilers print them and editors read them.
        session.say(str(e))
        session.hint(e.hint)
        return e.exit_code
    except OrchestratorError as e:
        _say_error(session, str(e), e.hint)
        return e.exit_code
    except click.exceptions.NoArgsIsHelpError as e:
        session.say(e.format_message())  # the help: no command was named
        return e.exit_code
    except click.ClickException as e:
        usage = e.ctx if isinstance(e, click.UsageError) else None
        hint = f"`{usage.command_path} --help` shows its arguments and options" if usage is not None else None
        _say_error(session, _in_lower_case(e.format_message()), hint)
        return e.exit_code
    except click.Abort:
        session.say("Interrupted")
        return INTERRUPTED
    except KeyboardInterrupt:
        return INTERRUPTED  # while words were completed, which click does before it catches this
    except StdoutClosed as e:
        discard(session.out)
        # The exit code. A closed pipe (`orch logs | head`) is no error, unless the command was to act.
        reason = e.reason
        acting = acting_command(argv)
        if reason is None and acting is None:
            return 0
        message = (
            f"cannot write to stdout: {reason}"
            if reason
            else f"stdout was closed before `orch {acting}` ended"
        )
        hint = "the command may not have finished; `orch status` shows the runs" if acting else None
        _say_error(session, message, hint)
        return 1 if reason else STDOUT_CLOSED
    except (InvariantViolated, Exception) as e:
        import traceback

        _say_error(
            session,
            f"this is a bug in orch {__version__}: {type(e).__name__}: {e}",
            "please report it with the lines below; running tasks are not affected",
        )
        session.say("".join(traceback.format_exception(e)).rstrip())
        return BUG
    return code if isinstance(code, int) else 0


def acting_command(argv: Sequence[str]) -> str | None:
    """Return the called command if it changes something; None if it only shows."""
    if {"-h", "--help"} & set(argv):
        return None
    return next((words for words, command in called(argv) if command.acts), None)


def called(argv: Sequence[str]) -> Iterator[tuple[str, Command]]:
    """Yield the command of a command line's first word, and the subcommand of its second, with these words."""
    command: click.Command | None = cli
    for n, word in enumerate(argv[:2], 1):
        if not isinstance(command, click.Group) or (command := command.get_command(_NOWHERE, word)) is None:
            return
        if isinstance(command, Command):
            yield " ".join(argv[:n]), command


_NOWHERE = click.Context(cli)


def main() -> None:
    """Run this process's command line."""
    sys.exit(run(sys.argv[1:], Session.from_process()))


def _say_error(session: Session, message: str, hint: str | None) -> None:
    session.say(session.paint_err("error: ", "red", "bold") + (message or "unknown"))
    session.hint(hint)


_RANGES = (
    (r"is not in the range x>=(\S+)$", r"is less than \1"),
    (r"is not in the range x<=(\S+)$", r"is more than \1"),
    (r"is not in the range (\S+)<=x<=(\S+)$", r"is not between \1 and \2"),
)
"""Click's wording for a number out of range, and ours."""


def _in_lower_case(message: str) -> str:
    """Return click's message in the style of orch's own: no capital, no full stop, and a range in words."""
    message = f"{message[:1].lower()}{message[1:].removesuffix('.')}"
    for form, words in _RANGES:
        message = re.sub(form, words, message)
    return message


if __name__ == "__main__":
    main()
