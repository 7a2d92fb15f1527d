"""`orch coordinator`: run it in the foreground, start, stop and show it."""

from __future__ import annotations

from typing import Any

import click

from orchestrator.cli import render
from orchestrator.cli.options import DURATION
from orchestrator.cli.session import Session
from orchestrator.core.errors import CoordinatorUnreachable, SomeHostsOnly


@click.group()
def command() -> None:
    """The process that decides. `orch up` starts it by itself; it may be killed at any time."""


@command.command()
@click.option("--after", type=int, metavar="PID", hidden=True, help="The coordinator that this one follows.")
@click.pass_obj
def run(session: Session, after: int | None) -> int:
    """Run it in the foreground, until a signal: for systemd."""
    from orchestrator.daemon.coordinator.main import run as run_coordinator

    session.paths.ensure()
    code: int = run_coordinator(session.paths, after=after)
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
    """Ask it to end, and wait until it has. CoordinatorUnreachable where none runs."""
    from orchestrator.cli.handover import end_coordinator

    client = session.client()
    active = [
        render.title(found) for found in client.get("/v1/status").get("runs") or [] if render.is_active(found)
    ]
    pid = client.get("/v1/coordinator").get("pid")
    end_coordinator(session, pid)
    going = f"; {', '.join(active)} goes on unwatched" if active else ""
    session.say(f"the coordinator (pid {pid}) has ended{going}")


@command.command()
@click.option(
    "--timeout", type=DURATION, default="60s", show_default=True, help="How long to wait for all hosts."
)
@click.option("--json", "as_json", is_flag=True, help="What was taken up, for scripts.")
@click.pass_obj
def restart(session: Session, timeout: float, as_json: bool) -> int:
    """Hand over to a coordinator of this program's version. No task is touched.

    Refused, with the old one still running, where this version cannot read the journal. Once the new one waits for
    the journal the handover goes on whatever becomes of this command. Exit 4 where a host has
    not been heard in time: it is connected as soon as it can be, and nothing is restarted for it.
    """
    from orchestrator.cli.handover import hand_over

    done = hand_over(session, timeout_s=timeout)
    if as_json:
        session.put_json(done.to_json())
    else:
        session.put(done.sentence)
    if done.waiting:
        raise SomeHostsOnly(
            f"not heard yet: {', '.join(done.waiting)}",
            hint="the coordinator goes on trying; `orch status` shows it",
        )
    return 0


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
    keys = (
        "pid",
        "epoch",
        "version",
        "socket",
        "state_dir",
        "started_at",
        "service",
        "warning",
        "runs",
        "hosts",
    )
    rows = [(key, _listed(document[key])) for key in keys if document.get(key) is not None]
    return "\n".join(f"{key.replace('_', ' '):<11} {text}" for key, text in rows)


def _listed(value: object) -> str:
    if isinstance(value, dict):  # hosts: whether they are connected now
        return ", ".join(key if up else f"{key} (not connected)" for key, up in value.items()) or "none"
    return (", ".join(map(str, value)) or "none") if isinstance(value, list) else str(value)
