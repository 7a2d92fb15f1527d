"""`orch validate`: all that is wrong with cluster specs, at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import click

from orchestrator.cli.session import Session
from orchestrator.core.errors import SpecError


@dataclass(frozen=True, slots=True)
class Request:
    """Which files."""

    files: Sequence[str]


@dataclass(frozen=True, slots=True)
class Checked:
    """One file; `error` is None where it is fine."""

    file: str
    error: SpecError | None


def run(request: Request) -> list[Checked]:
    """Load and plan each file."""
    from orchestrator.spec.plan import load_plan

    checked = []
    for file in request.files:
        try:
            load_plan(file)
            checked.append(Checked(file, None))
        except SpecError as e:
            checked.append(Checked(file, e))
    return checked


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(), metavar="FILE...")
@click.option("--json", "as_json", is_flag=True, help="A document, for scripts.")
@click.pass_obj
def command(session: Session, files: tuple[str, ...], as_json: bool) -> int:
    """Check cluster specs: every complaint with its line and column. Exit 2 where there is one."""
    checked = run(Request(files))
    if as_json:
        complaints = [
            {"file": c.file, "complaints": str(c.error).splitlines() if c.error else []} for c in checked
        ]
        session.put_json({"files": complaints})
    else:
        for found in checked:
            if found.error is None:
                session.put(f"{found.file}: ok")
            else:
                session.say(str(found.error))
                if found.error.hint:
                    session.say(f"{session.paint_err('hint:', 'cyan')} {found.error.hint}")
    return SpecError.exit_code if any(found.error for found in checked) else 0
