"""`orch stacks`: show the Python stacks of the tasks."""

from __future__ import annotations

import click

from orchestrator.cli.help import json_option, orch_command
from orchestrator.cli.run_choice import complete_task, name_and_task, run_argument
from orchestrator.cli.session import Session
from orchestrator.client.asking import stacks
from orchestrator.client.choice import find, only_active, runs_of


@orch_command(
    about_runs=True,
    examples=[
        ("orch stacks", "Show the stacks of all tasks of the only active run"),
        ("orch stacks mnist worker:1", "Show the stacks of one task"),
    ],
)
@run_argument()
@click.argument("task", required=False, shell_complete=complete_task)
@json_option()
def command(session: Session, name: str | None, task: str | None) -> None:
    """Show the Python stacks of all threads of a run's tasks. The tasks keep running.

    Without NAME: the only active run. TASK reads like worker:0; without it, all tasks.
    """
    name, task = name_and_task(name, task)
    client = session.client()
    runs = runs_of(client)
    by_task = stacks(client, find(runs, name) if name else only_active(runs, "stacks"), task)
    blocks = [f"{session.paint(task, 'bold')}\n{text.rstrip()}" for task, text in by_task.items()]
    session.answer({"stacks": by_task}, "\n\n".join(blocks))
