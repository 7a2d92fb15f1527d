"""`orch coordinator`: run it in the foreground, start, stop and show it."""

from __future__ import annotations

from typing import Any

import click

from orchestrator.cli import render
from orchestrator.cli.session import Session
from orchestrator.core.errors import CoordinatorUnreachable, WaitTimedOut

_STOP_TIMEOUT_S = 30.0
_LOOK_EVERY_S = 0.05


@click.group()
def command() -> None:
    """The process that decides. `orch up` starts it by itself; it may be killed at any time."""


@command.command()
@click.pass_obj
def run(session: Session) -> int:
    """Run it in the foreground, until a signal: for systemd."""
    from orchestrator.daemon.coordinator import run as run_coordinator

    session.paths.ensure()
    code: int = run_coordinator(session.paths)
    return code


@command.command()
@click.option("--json", "as_json", is_flag=True, help="Its document, for scripts.")
@click.pass_obj
def start(session: Session, as_json: bool) -> int:
    """Start it in the background, unless it runs."""
    from orchestrator.cli.starting import ensure_coordinator

    document, started = ensure_coordinator(session)
    if not started:
        session.say(f"the coordinator runs already (pid {document.get('pid')})")
    if as_json:
        session.put_json(document)
    return 0


@command.command()
@click.pass_obj
def stop(session: Session) -> int:
    """End it. The tasks go on; the next coordinator takes them up."""
    try:
        stop_coordinator(session)
    except CoordinatorUnreachable as e:
        if not isinstance(e.__cause__, (FileNotFoundError, ConnectionRefusedError)):
            raise
        session.say("no coordinator is running")
    return 0


def stop_coordinator(session: Session) -> None:
    """Ask it to end, and wait until nothing answers. CoordinatorUnreachable where none runs."""
    client = session.client()
    active = [
        render.title(found) for found in client.get("/v1/status").get("runs") or [] if render.is_active(found)
    ]
    pid = client.get("/v1/coordinator").get("pid")
    client.post("/v1/stop")
    deadline = session.now() + _STOP_TIMEOUT_S
    while session.now() < deadline:
        try:
            client.get("/v1/coordinator", timeout_s=1.0)
        except CoordinatorUnreachable:
            going = f"; {', '.join(active)} goes on unwatched" if active else ""
            session.say(f"the coordinator (pid {pid}) has ended{going}")
            return
        session.pause(_LOOK_EVERY_S)
    raise WaitTimedOut(
        f"the coordinator (pid {pid}) still answers after {_STOP_TIMEOUT_S:g} s",
        hint=f"it may be killed (kill -9 {pid}): the tasks go on",
    )


@command.command()
@click.option("--json", "as_json", is_flag=True, help="Its document, for scripts.")
@click.pass_obj
def status(session: Session, as_json: bool) -> int:
    """Show whether it runs, and which it is."""
    document = session.client().get("/v1/coordinator")
    if as_json:
        session.put_json(document)
    else:
        session.put(_text(document))
    return 0


def _text(document: dict[str, Any]) -> str:
    keys = ("pid", "epoch", "version", "socket", "state_dir", "started_at", "runs", "hosts")
    rows = [(key, _listed(document[key])) for key in keys if document.get(key) is not None]
    return "\n".join(f"{key.replace('_', ' '):<11} {text}" for key, text in rows)


def _listed(value: object) -> str:
    if isinstance(value, dict):  # hosts: whether they are connected now
        return ", ".join(key if up else f"{key} (not connected)" for key, up in value.items()) or "none"
    return (", ".join(map(str, value)) or "none") if isinstance(value, list) else str(value)
