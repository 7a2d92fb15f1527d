"""`orch coordinator`: run it in the foreground; start, stop, restart or show it."""

from __future__ import annotations

import click

from orchestrator.cli.handover import end_coordinator, hand_over
from orchestrator.cli.help import Group, json_option
from orchestrator.cli.options import DURATION
from orchestrator.cli.session import Session, is_not_running
from orchestrator.cli.show import render
from orchestrator.client.choice import is_active
from orchestrator.client.starting import ensure_coordinator
from orchestrator.core.errors import CoordinatorUnreachable, SomeHostsOnly


@click.group(
    cls=Group,
    examples=[
        ("orch coordinator status", "Show whether it is running, and its version"),
        ("orch coordinator restart", "Replace it after an upgrade of orch; the tasks keep running"),
    ],
)
def command() -> None:
    """Run, start, stop, restart or show the coordinator, the process that decides.

    `orch up` starts it by itself. It may end at any time: the tasks keep running, and the next one adopts them.
    """


@command.subcommand(
    examples=[
        ("orch coordinator run", "Run it until Ctrl-C"),
        ("ORCH_STATE_DIR=/srv/orch orch coordinator run", "Run it with its journal in another directory"),
    ]
)
@click.option("--after", type=int, metavar="PID", hidden=True, help="The coordinator that this one replaces.")
def run(session: Session, after: int | None) -> int:
    """Run the coordinator in the foreground, as systemd does. SIGINT or SIGTERM ends it."""
    from orchestrator.head.coordinator.main import run as run_coordinator

    session.paths.ensure()
    code: int = run_coordinator(session.paths, after=after)
    return code


@command.subcommand(
    acts=True,
    examples=[
        ("orch coordinator start", "Start it unless it is running"),
        ("orch coordinator start --json", "The same, and print its pid, epoch, version and socket"),
    ],
)
@json_option("Print its document, for scripts.")
def start(session: Session) -> None:
    """Start the coordinator in the background, unless it is running."""
    document, started = ensure_coordinator(session)
    if not started:
        session.say(f"Coordinator already running (pid {document.get('pid')})")
    session.answer(document)


@command.subcommand(
    acts=True,
    examples=[
        ("orch coordinator stop", "Stop it; the tasks keep running"),
        ("orch coordinator stop && orch coordinator start", "Stop it and start another one"),
    ],
)
def stop(session: Session) -> None:
    """Stop the coordinator. The tasks keep running; the next coordinator adopts them."""
    try:
        stop_coordinator(session)
    except CoordinatorUnreachable as e:
        if not is_not_running(e):
            raise
        session.say("No coordinator is running")


def stop_coordinator(session: Session) -> None:
    """Stop the coordinator, and wait for its end. Raises CoordinatorUnreachable if none is running."""

    client = session.client()
    active = [render.title(run) for run in client.get("/v1/status").get("runs") or [] if is_active(run)]
    pid = client.get("/v1/coordinator").get("pid")
    end_coordinator(session, pid)
    session.say(f"Coordinator stopped (pid {pid})")
    if active:
        session.warn(f"nobody restarts {', '.join(active)} after a failure until `orch coordinator start`")


@command.subcommand(
    acts=True,
    examples=[
        ("orch coordinator restart", "Replace the coordinator by one of this version"),
        ("orch coordinator restart --timeout 5m", "Wait up to five minutes for all hosts to report"),
    ],
)
@click.option(
    "--timeout", type=DURATION, default="60s", show_default=True, help="How long to wait for all hosts."
)
@json_option("Print what was adopted as a document.")
def restart(session: Session, timeout: float) -> None:
    """Replace the coordinator by one of this orch's version. The tasks keep running.

    Refused if this version cannot read the journal; the old coordinator then keeps running. Once the new one waits
    for the journal, the handover no longer needs this command. Exit code 4 if a host has not reported in time; its
    tasks are not restarted for that.
    """

    done = hand_over(session, timeout_s=timeout)
    session.answer(done.to_json(), done.sentence)
    if done.waiting:
        raise SomeHostsOnly(
            f"no report yet from {', '.join(done.waiting)}",
            hint="the coordinator keeps trying; `orch status` shows the hosts",
        )


@command.subcommand(
    examples=[
        ("orch coordinator status", "Show its pid, version, directories, runs and hosts"),
        ("orch coordinator status --json", "The same as a document"),
    ]
)
@json_option("Print its document, for scripts.")
def status(session: Session) -> None:
    """Show the running coordinator. Exit code 3 if none is running."""
    document = session.client().get("/v1/coordinator")
    keys = (
        *("pid", "epoch", "version", "socket", "state_dir"),
        *("started_at", "service", "warning", "runs", "hosts"),
    )
    rows = [(key, _listed(document[key])) for key in keys if document.get(key) is not None]
    session.answer(document, *(f"{key.replace('_', ' '):<11} {text}" for key, text in rows))


def _listed(value: object) -> str:
    if isinstance(value, dict):  # hosts, and whether they are connected
        return ", ".join(key if up else f"{key} (not connected)" for key, up in value.items()) or "none"
    return (", ".join(map(str, value)) or "none") if isinstance(value, list) else str(value)
