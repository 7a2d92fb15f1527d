"""`orch status`: show runs, their progress, and what they wait for."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

import click

from orchestrator import __version__
from orchestrator.cli.help import json_option, orch_command
from orchestrator.cli.run_choice import run_argument
from orchestrator.cli.session import Session
from orchestrator.cli.show import render
from orchestrator.cli.show.terminal import fold, screen
from orchestrator.client.client import Client
from orchestrator.core.errors import CoordinatorUnreachable
from orchestrator.core.words import duration

if TYPE_CHECKING:
    from rich.text import Text


class Keys:
    """A context in which `wait` returns each key. The terminal's mode is restored at its end."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._before: list[Any] | None = None

    def __enter__(self) -> Keys:
        if self._stream.isatty():
            self._before = termios.tcgetattr(self._stream)
            tty.setcbreak(self._stream)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is not None:
            termios.tcsetattr(self._stream, termios.TCSADRAIN, self._before)

    def wait(self, seconds: float) -> str:
        """Return the next key, or "" after a timeout."""
        if self._before is None:
            time.sleep(seconds)
            return ""
        ready, _, _ = select.select([self._stream], [], [], seconds)
        # One byte of the descriptor: the stream would also read ahead what is typed for the shell.
        return os.read(self._stream.fileno(), 1).decode("ascii", "replace") if ready else ""


_REFRESH_S = 1.0


@orch_command(
    about_runs=True,
    examples=[
        ("orch status", "Show all runs"),
        ("orch status mnist --watch", "Keep the status of one run on the screen"),
        ("orch status --json", "Print everything that is known, for scripts"),
    ],
)
@run_argument()
@json_option("Print the status document.")
@click.option("-w", "--watch", is_flag=True, help="Refresh the screen every second; q quits.")
def command(session: Session, name: str | None, watch: bool) -> int:
    """Show runs, their progress, and what they wait for. Without NAME: all runs.

    If no coordinator answers, shows the last recorded state; exit code 3. Training continues without a coordinator.
    """
    if watch and not session.wants_json and session.out_is_terminal:
        return _watch(name, session)
    try:
        document, code = Client(environment=session).status(name), 0
    except CoordinatorUnreachable as e:
        recorded = Client(environment=session).recorded(name)
        if recorded is None:
            raise
        document, code = recorded, e.exit_code
        session.warn(_recorded_sentence(e, document))
        session.hint(e.hint)
    for sentence in document.get("troubles", ()):
        session.warn(sentence)
    if (document.get("coordinator") or {}).get("version") not in (None, __version__):
        from orchestrator.cli.handover import say_other_version

        say_other_version(session, document["coordinator"])
    if session.wants_json:
        session.put_json(document)
    else:
        session.put(render.status(document, session.paint, width=session.width))
    return code


def _recorded_sentence(error: CoordinatorUnreachable, document: dict[str, Any]) -> str:
    return f"{error}; this is the last recorded state, of {duration(document['recorded_age_s'])} ago"


def _watch(name: str | None, session: Session) -> int:
    from rich.console import Console
    from rich.live import Live

    client = Client(environment=session)

    def shown() -> Text:
        """Return the screen. An absent coordinator may return; training continues without it."""
        try:
            document, notes = client.status(name), []
        except CoordinatorUnreachable as e:
            recorded = client.recorded(name)
            if recorded is None:
                raise
            document, notes = recorded, [_recorded_sentence(e, recorded), "Trying again"]
        notes += document.get("troubles", ())
        text = render.status(document, session.paint, width=session.width)
        note_lines = [line for note in notes for line in fold(note, session.width, indent="  ")]
        return screen("\n".join([text, "", *note_lines, session.paint("q quits", "dim")]))

    first = shown()  # an error is shown before the screen is cleared
    console = Console(file=session.out, highlight=False, no_color=not session.paint.on)
    try:
        with Keys(sys.stdin) as keys, Live(first, console=console, screen=True, auto_refresh=False) as live:
            while keys.wait(_REFRESH_S) not in ("q", "Q", "\x1b"):
                live.update(shown(), refresh=True)
    except KeyboardInterrupt:
        pass  # quits like q
    return 0
