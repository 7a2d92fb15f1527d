"""`orch status`: show runs, their progress, and what they wait for."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from orchestrator import __version__
from orchestrator.cli import render
from orchestrator.cli.help import Command
from orchestrator.cli.run_choice import find, run_argument
from orchestrator.cli.session import Session
from orchestrator.cli.terminal import screen
from orchestrator.core.errors import CoordinatorUnreachable

if TYPE_CHECKING:
    from rich.text import Text

_REFRESH_S = 1.0


@dataclass(frozen=True, slots=True)
class Request:
    """Which run; None for all."""

    name: str | None


def run(request: Request, session: Session) -> dict[str, Any]:
    """Return the status document of all runs, or of the one that is named."""
    client = session.client()
    document = client.get("/v1/status")
    if request.name is None:
        return document
    return {**document, "runs": [find(document.get("runs") or [], request.name)]}


@click.command(
    cls=Command,
    examples=[
        ("orch status", "Show all runs"),
        ("orch status mnist --watch", "Keep the status of one run on the screen"),
        ("orch status --json", "Print everything that is known, for scripts"),
    ],
)
@run_argument()
@click.option("--json", "as_json", is_flag=True, help="Print the status document.")
@click.option("-w", "--watch", is_flag=True, help="Refresh the screen every second; q quits.")
@click.pass_obj
def command(session: Session, name: str | None, as_json: bool, watch: bool) -> int:
    """Show runs, their progress, and what they wait for. Without NAME: all runs."""
    request = Request(name)
    if watch and not as_json and session.out_is_terminal:
        return _watch(request, session)
    document = run(request, session)
    _say_other_version(session, document)
    if as_json:
        session.put_json(document)
    else:
        session.put(render.status(document, session.paint, width=session.width))
    return 0


def _say_other_version(session: Session, document: dict[str, Any]) -> None:
    if (document.get("coordinator") or {}).get("version") not in (None, __version__):
        from orchestrator.cli.handover import say_other_version

        say_other_version(session, document["coordinator"])


def _watch(request: Request, session: Session) -> int:
    from rich.console import Console
    from rich.live import Live

    from orchestrator.cli.keys import Keys

    def shown() -> Text:
        text = render.status(run(request, session), session.paint, width=session.width)
        return screen(f"{text}\n\n{session.paint('q quits', 'dim')}")

    first = shown()  # an error is shown before the screen is cleared
    console = Console(file=session.out, highlight=False, no_color=not session.paint.on)
    try:
        with Keys(sys.stdin) as keys, Live(first, console=console, screen=True, auto_refresh=False) as live:
            while keys.wait(_REFRESH_S) not in ("q", "Q", "\x1b"):
                try:
                    live.update(shown(), refresh=True)
                except CoordinatorUnreachable as e:  # it may come back; training continues without it
                    live.update(screen(f"{e}\nhint: {e.hint}\n\nTrying again; q quits"), refresh=True)
    except KeyboardInterrupt:
        pass  # quits like q
    return 0
