"""`--help` of every command: it ends with examples, and each of them can be parsed."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import click
import pytest

from orchestrator.cli.help import Command
from orchestrator.cli.main import cli
from tests.unit.cli.desk import Desk

EXAMPLES_MIN = 2


def walk(command: click.Command, *words: str) -> Iterator[tuple[tuple[str, ...], Command]]:
    """Yield the command and all below it, with the words that call it."""
    assert isinstance(command, Command), f"{words}: not of our kind"
    yield words, command
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=words[-1] if words else "orch")
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from walk(found, *words, name)


ALL = dict(walk(cli))
EXAMPLES = [(words, line) for words, command in ALL.items() for line, _ in command.examples]


def called(line: str) -> list[list[str]]:
    """Return the arguments of each `orch` of a shell line; redirections and assignments are the shell's."""
    words = shlex.shlex(line, posix=True, punctuation_chars=True)
    words.whitespace_split = True
    commands: list[list[str]] = [[]]
    skip = False
    for word in words:
        if word in ("&&", "|", ";"):
            commands.append([])
        elif word == ">":
            skip = True
        elif skip:
            skip = False
        else:
            commands[-1].append(word)
    return [argv[argv.index("orch") + 1 :] for argv in commands]


def parse(argv: list[str]) -> tuple[str, ...]:
    """Parse as click does, without running anything. Return the words that name the command."""
    context = cli.make_context("orch", list(argv))
    words: list[str] = []
    while isinstance(context.command, click.Group):
        if context.command.invoke_without_command and not [*context._protected_args, *context.args]:
            break
        name, command, rest = context.command.resolve_command(
            context, [*context._protected_args, *context.args]
        )
        assert name is not None
        assert command is not None
        words.append(name)
        context = command.make_context(name, rest, parent=context)
    return tuple(words)


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_every_command_has_help_that_ends_with_examples(orch: Desk, words: tuple[str, ...]) -> None:
    assert orch(*words, "--help") == 0
    help_text, _, examples = orch.put_out.partition("\nExamples:\n")
    assert help_text.startswith(f"Usage: {' '.join(('orch', *words))} ")
    lines = examples.splitlines()
    assert len(lines) >= 2 * EXAMPLES_MIN
    assert all(line.startswith("  # ") for line in lines[::2]), "what it does, then the line to copy"
    assert max(map(len, lines)) <= 100
    assert "..." not in help_text.partition("Commands:")[2], "a one-line description that is cut off"


@pytest.mark.parametrize(("words", "line"), EXAMPLES, ids=[line for _, line in EXAMPLES])
def test_every_example_can_be_parsed_and_is_of_its_command(words: tuple[str, ...], line: str) -> None:
    parsed = [parse(argv) for argv in called(line)]
    assert parsed[0][: len(words)] == words


@pytest.mark.parametrize("line", ["orch logs --no-such-option", "orch drain", "orch kill --timeout soon"])
def test_an_example_with_a_mistake_would_be_found(line: str) -> None:
    with pytest.raises(click.UsageError):
        parse(called(line)[0])
