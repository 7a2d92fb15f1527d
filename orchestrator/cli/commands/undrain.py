"""`orch undrain`: let a drained or quarantined host take tasks again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.cli.commands.drain import old_name_option, run
from orchestrator.cli.help import json_option, orch_command
from orchestrator.cli.run_choice import complete_host, run_and
from orchestrator.cli.session import Session
from orchestrator.cli.show.terminal import printable


def answer(host: str, of_run: Mapping[str, Any]) -> str:
    """Return the sentence for people: that the host can take tasks of a run, or why it cannot yet."""
    state, reason = of_run.get("state"), of_run.get("reason")
    can = "; it can take tasks" if state in ("ready", "spare") else ""
    return f"{host} is {state} for {of_run.get('run_id')}" + (f": {reason}" if reason else can)


@orch_command(
    acts=True,
    about_runs=True,
    examples=[
        ("orch undrain gpu-b", "Let gpu-b take tasks again, of all runs"),
        ("orch undrain mnist gpu-b", "Let gpu-b take tasks of the run mnist"),
    ],
)
@run_and("host", complete_host)
@old_name_option
@json_option("Print the host's state as a document.")
def command(session: Session, name: str | None, host: str, old_name: str | None) -> None:
    """Let HOST take tasks again after a drain or a quarantine.

    A run that continued with fewer workers grows back at its next verified checkpoint; otherwise HOST becomes a
    spare. Without NAME: for all runs, and runs can be placed there again.
    """
    answered = run(name or old_name, host, session, verb="undrain")
    shown = [answer(host, of_run) for of_run in answered.get("runs", [answered])]
    shown += [f"runs can be placed on {host}"] if "runs" in answered else []
    session.answer(answered, *map(printable, shown))
