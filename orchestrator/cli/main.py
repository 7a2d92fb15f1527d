"""`orch`: finds the command, runs it, and turns what went wrong into a sentence and an exit code.

A command's module is imported when it is called, and not before: `orch status` is used in prompts and loops.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

import click

from orchestrator import __version__
from orchestrator.cli.session import NobodyReads, Session, hang_up
from orchestrator.core.errors import InvariantViolated, OrchestratorError, SpecError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

PURPOSES = {
    "Run": {
        "validate": "Check cluster specs; all diagnostics at once.",
        "plan": "What a cluster spec resolves to, task by task.",
        "up": "Start a run, or say that it runs already.",
        "kill": "End runs, and prove that nothing is left.",
    },
    "Look": {
        "status": "What runs, how far it is, and why it waits.",
        "why": "What went wrong first, who followed, what was done.",
        "logs": "What the tasks print, merged by time.",
        "events": "What happened to a run, and when.",
        "stacks": "Where each task's Python is right now.",
        "tensorboard": "Bring a run's TensorBoard files here, and show them.",
    },
    "Repair": {
        "ckpt": "Checkpoints: list, verify, pin, go back to one.",
        "drain": "Take a host out: its tasks move at the next checkpoint.",
        "undrain": "Let a drained or quarantined host in again.",
        "recover": "Rebuild a lost journal from the hosts.",
        "gc": "Find and remove what is left of runs that nobody knows.",
        "chaos": "Hurt a run that allows it, and measure how it comes back.",
    },
    "Set up": {
        "trust": "Show hosts' keys, and add them to the known ones.",
        "coordinator": "Run, start, stop, restart and show the coordinator.",
        "service": "The coordinator as a systemd unit.",
        "schema": "The JSON Schema of cluster.yaml, for editors.",
        "completion": "Print the shell's completion script.",
    },
}
"""What people come for, and the commands that serve it: the order of `orch --help`."""

COMMANDS = [name for commands in PURPOSES.values() for name in commands]

_ACTS = ("up", "kill", "drain", "undrain", "recover", "gc", "chaos", "trust")
"""Commands that may have had more to do when nobody read on."""

INTERRUPTED = 130
NOBODY_READS = 141
"""As a shell shows a process that SIGPIPE has ended."""
BUG = 70


class LazyGroup(click.Group):
    """Knows its commands' names, and imports the one that is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's signature)
        return COMMANDS

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        command = import_module(f"orchestrator.cli.commands.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """From the table: help must not import everything."""
        width = max(map(len, COMMANDS))  # one column for all sections
        for purpose, commands in PURPOSES.items():
            with formatter.section(purpose):
                formatter.write_dl([(name.ljust(width), told) for name, told in commands.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """As `format_commands`; with the group's own options."""
        from click.shell_completion import CompletionItem

        table = {name: told for commands in PURPOSES.values() for name, told in commands.items()}
        found = [
            CompletionItem(name, help=told) for name, told in table.items() if name.startswith(incomplete)
        ]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as e:
            from difflib import get_close_matches

            close = get_close_matches(args[0], COMMANDS, n=1)
            # click's own suggestions import every command.
            hint = f"; did you mean `orch {close[0]}`?" if close else ""
            raise click.UsageError(f"no such command: {args[0]!r}{hint}", ctx) from e


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "--version", prog_name="orch", message="%(prog)s %(version)s")
def cli() -> None:
    """TensorFlow training over plain SSH hosts: starts it, watches it, brings it back, says why."""


def run(argv: Sequence[str], session: Session) -> int:
    """Run one command line and return its exit code. The only place where errors become text."""
    try:
        code = cli.main(list(argv), prog_name="orch", standalone_mode=False, obj=session)
    except SpecError as e:
        # One diagnostic a line, each `file:line:column: …`, as compilers write them and editors read them.
        session.say(str(e))
        if e.hint:
            _say_hint(session, e.hint)
        return e.exit_code
    except OrchestratorError as e:
        _say_error(session, str(e), e.hint)
        return e.exit_code
    except click.exceptions.NoArgsIsHelpError as e:
        session.say(e.format_message())  # whoever names no command wants to know which there are
        return e.exit_code
    except click.ClickException as e:
        _say_error(session, e.format_message(), _usage_hint(e))
        return e.exit_code
    except click.Abort:
        session.say("interrupted")
        return INTERRUPTED
    except NobodyReads:
        hang_up(session.out)
        return _without_readers(argv, session)
    except (InvariantViolated, Exception) as e:
        return _say_bug(session, e)
    return code if isinstance(code, int) else 0


def _without_readers(argv: Sequence[str], session: Session) -> int:
    """`orch logs | head`: that nobody reads on is no error, unless something was to be done as well."""
    acting = (
        next((word for word in argv if word in _ACTS), None) if not {"-h", "--help"} & set(argv) else None
    )
    if acting is None:
        return 0
    _say_error(
        session,
        f"`orch {acting}` ended where its output was closed",
        "what was still to be done was not done; `orch status` shows how far it came",
    )
    return NOBODY_READS


def main() -> None:
    """The entry point of `orch`."""
    sys.exit(run(sys.argv[1:], Session.of_process()))


def _say_error(session: Session, message: str, hint: str | None) -> None:
    # Never two lines that a terminal takes for one, and never none.
    session.say(session.paint_err("error: ", "red", "bold") + (message or "unknown"))
    if hint:
        _say_hint(session, hint)


def _say_hint(session: Session, hint: str) -> None:
    session.say(session.paint_err("hint: ", "cyan", "bold") + hint)


def _usage_hint(error: click.ClickException) -> str | None:
    if not isinstance(error, click.UsageError) or error.ctx is None:
        return None
    return f"`{error.ctx.command_path} --help` shows how it is used"


def _say_bug(session: Session, error: BaseException) -> int:
    import traceback

    _say_error(
        session,
        f"this is a bug in orch {__version__}: {type(error).__name__}: {error}",
        "please report it with the lines below; running tasks are not touched by it",
    )
    session.say("".join(traceback.format_exception(error)).rstrip())
    return BUG


if __name__ == "__main__":
    main()
