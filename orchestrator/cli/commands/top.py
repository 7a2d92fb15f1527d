"""`orch top`: runs in this terminal, live."""

from __future__ import annotations

import os

import click

from orchestrator.cli.help import orch_command
from orchestrator.cli.run_choice import run_argument
from orchestrator.cli.session import Session
from orchestrator.core.errors import UsageError


@orch_command(
    about_runs=True,
    examples=[
        ("orch top", "Show the newest active run, and what its tasks do"),
        ("orch top mnist", "Show the run mnist; ? shows the keys"),
        ("orch top mnist --utc", "Show the times of its events as UTC"),
    ],
)
@run_argument()
@click.option("--utc", is_flag=True, help="Show times as UTC.")
def command(session: Session, name: str | None, utc: bool) -> None:
    """Show a run live: progress, pace, loss, tasks with their GPUs, events, and the log of the chosen task.

    Without NAME: the newest active run, else the newest. Keys lead to why, stacks, drain and kill, which ask before
    they change anything. q quits.
    """
    if not session.out_is_terminal:
        raise UsageError("orch top needs a terminal", hint="`orch status` prints once")
    # Few and small changes, since the line may be slow. Textual reads these when it is imported.
    os.environ.setdefault("TEXTUAL_FPS", "10")
    os.environ.setdefault("TEXTUAL_ANIMATIONS", "none")
    from orchestrator.cli.top.app import Top
    from orchestrator.cli.top.feed import Feed

    feed = Feed(session, name)
    feed.read(None, "")  # an error is shown before the screen is taken
    Top(feed, utc=utc).run()
