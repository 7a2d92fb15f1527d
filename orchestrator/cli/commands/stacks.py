"""`orch stacks`: where each task's Python is right now."""

from __future__ import annotations

from dataclasses import dataclass

import click

from orchestrator.cli.run_choice import find, only_active, run_argument, runs_of
from orchestrator.cli.session import Session

_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Request:
    """Whose stacks; None: of the only active run."""

    name: str | None


def run(request: Request, session: Session) -> dict[str, str]:
    """Task to text."""
    client = session.client()
    runs = runs_of(client)
    chosen = find(runs, request.name) if request.name else only_active(runs, "look at")
    answer = client.post(f"/v1/runs/{chosen['name']}/stacks", timeout_s=_TIMEOUT_S)
    return {str(task): str(text) for task, text in (answer.get("stacks") or {}).items()}


@click.command()
@run_argument()
@click.option("--json", "as_json", is_flag=True, help="A document, for scripts.")
@click.pass_obj
def command(session: Session, name: str | None, as_json: bool) -> int:
    """Show the Python stacks of all threads of all tasks of a run. The tasks go on."""
    stacks = run(Request(name), session)
    if as_json:
        session.put_json({"stacks": stacks})
        return 0
    blocks = [f"{session.paint(task, 'bold')}\n{text.rstrip()}" for task, text in stacks.items()]
    session.put("\n\n".join(blocks))
    return 0
