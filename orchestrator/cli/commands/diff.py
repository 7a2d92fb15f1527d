"""`orch diff`: show how a run differs from its current spec and code, or from another run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from orchestrator.cli.help import json_option, orch_command
from orchestrator.cli.run_choice import complete_run
from orchestrator.cli.session import Session
from orchestrator.client.known_run import known_run

if TYPE_CHECKING:
    from orchestrator.client.comparing import Comparison
    from orchestrator.reporting.code_changes import FileChange

CHANGED = 10

_COLOURS = {"+": "green", "-": "red", "@": "cyan"}


def lines(comparison: Comparison, session: Session, *, full: bool) -> Iterator[str]:
    """Yield the differences, with a title for each kind."""
    title = session.paint
    if comparison.spec:
        yield title("spec", "bold")
        yield from (f"  {change.sentence}" for change in comparison.spec)
    if comparison.code:
        yield title("code", "bold")
        for change in comparison.code:
            yield from _file(change, session) if full and change.lines else [f"  {_counts(change)}"]
    if comparison.packages:
        yield title("packages", "bold")
        yield from (f"  {change.sentence}" for change in comparison.packages)


def _counts(change: FileChange) -> str:
    known = change.added is not None and change.change != "mode"
    return f"{change.path}: {change.change}" + (f", +{change.added} -{change.removed}" if known else "")


def _file(change: FileChange, session: Session) -> Iterator[str]:
    for line in change.lines:
        colour = _COLOURS.get(line[:1])
        yield session.paint(line, colour) if colour else line


@orch_command(
    about_runs=True,
    examples=[
        ("orch diff mnist", "What has changed in its file and code since it began"),
        ("orch diff mnist --full", "The same, line by line"),
        ("orch diff mnist-20261120-1 mnist-20261121-1", "What differs between two runs"),
    ],
)
@click.argument("name", shell_complete=complete_run)
@click.argument("other", required=False, metavar="[RUN2]", shell_complete=complete_run)
@click.option("--full", is_flag=True, help="Show the lines that differ, as diff -u does.")
@click.option("--detailed-exitcode", is_flag=True, help="Exit code 10 where something differs.")
@json_option()
def command(session: Session, name: str, other: str | None, full: bool, detailed_exitcode: bool) -> int:
    """Compare the run NAME with its cluster spec and working directory as they are now, or with RUN2.

    The spec is compared key by key, the code file by file with what was pushed when the run began, and the packages,
    between two runs, as the hosts had them. No host is asked.
    """
    from orchestrator.client import comparing

    run = known_run(session.paths, name)
    if other is not None:
        second = known_run(session.paths, other)
        comparison, what = comparing.with_run(session.paths, run, second), second.run_id
    else:
        what, plan = comparing.plan_of_now(run)
        comparison = comparing.with_now(session.paths, run, plan)
    document = {"schema": 1, "run": run.run_id, "with": what, **comparing.document(comparison)}
    session.answer(document, *lines(comparison, session, full=full))
    if comparison.is_same and not session.wants_json:
        how = "do not differ" if comparison.code is not None else "have the same spec"
        session.say(f"{run.run_id} and {what} {how}")
    if comparison.code is None:
        session.warn("the code cannot be compared: it was not pushed yet, or by an older orch")
    return CHANGED if detailed_exitcode and not comparison.is_same else 0
