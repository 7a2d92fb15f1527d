"""Commands whose `--help` ends with examples, written to the session's stdout."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

from orchestrator.cli.session import Session

Example = tuple[str, str]
"""A command line, and its effect. A test parses each one."""

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Command(click.Command):
    """A command with properties for orch: `@orch_command(examples=[(line, meaning)])`.

    `acts`: it changes something, so a person must know if it was cut short. `about_runs`: it is about a run, which may
    be one on Slurm.
    """

    def __init__(
        self,
        *args: Any,
        examples: Iterable[Example] = (),
        acts: bool = False,
        about_runs: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.examples = tuple(examples)
        self.acts = acts
        self.about_runs = about_runs

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write each example below a comment with its effect, ready to be copied."""
        with formatter.section("Examples"):
            indent = " " * formatter.current_indent
            for line, meaning in self.examples:
                formatter.write(f"{indent}# {meaning}\n{indent}{line}\n")

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        """Return click's option, which prints through the session like all other output."""
        option = super().get_help_option(ctx)
        if option is not None:
            option.callback = _show_help
        return option


class Group(Command, click.Group):
    """A group of such commands."""

    command_class = Command

    def subcommand(
        self, name: str | None = None, **properties: Any
    ) -> Callable[[Callable[..., Any]], click.Command]:
        """Declare a command of the group, whose function gets the session first."""
        return lambda function: self.command(name, **properties)(click.pass_obj(function))


def orch_command(**properties: Any) -> Callable[[Callable[..., Any]], Command]:
    """Declare a command, whose function gets the session first. It returns an exit code, or nothing for 0."""
    return lambda function: click.command(cls=Command, **properties)(click.pass_obj(function))


def json_option(help: str = "Print a document, for scripts.") -> Callable[[_Function], _Function]:
    """Declare `--json`, with which `Session.answer` prints a document."""
    return click.option("--json", is_flag=True, expose_value=False, callback=_want_json, help=help)


def _want_json(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if (session := ctx.find_object(Session)) is not None:  # there is none while a shell completes words
        session.wants_json = value


def _show_help(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        _put(ctx, ctx.get_help())


def _put(ctx: click.Context, text: str) -> None:
    session = ctx.find_object(Session)
    assert session is not None
    session.put(text)
    ctx.exit()


def version_option(text: str) -> click.Option:
    """Return `--version`, which prints this text."""

    def show(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
        if value and not ctx.resilient_parsing:
            _put(ctx, text)

    return click.Option(
        ["--version"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=show,
        help="Show the version and exit.",
    )
