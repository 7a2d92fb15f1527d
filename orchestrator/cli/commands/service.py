"""`orch service`: run the coordinator, or `orch metrics`, as a systemd unit, which starts at boot and is restarted."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Any

import click

from orchestrator.both.logind import user_name
from orchestrator.cli.help import Group
from orchestrator.cli.options import DEFAULT, exposure, parse_listen
from orchestrator.cli.session import Session
from orchestrator.core.errors import CoordinatorUnreachable, OrchestratorError, UsageError
from orchestrator.head.node.bearer import token_file
from orchestrator.head.node.systemd import METRICS, UNIT, CoordinatorUnit, MetricsUnit, Systemd


@dataclass(frozen=True, slots=True)
class Request:
    """Which kind of unit, and as which user it runs."""

    system: bool
    user: str
    listen: str | None = None
    """Where the metrics are served; None: the unit is the coordinator's."""


def unit_of(request: Request, session: Session) -> CoordinatorUnit:
    """Return the unit for this program and this session's directories."""
    from orchestrator.client.starting import coordinator_command

    # What this command needed to import its modules, the directory of local tasks, and where notify.yaml lies.
    environment = _environment(session, "PYTHONPATH", "ORCH_HOST_DIR", "XDG_CONFIG_HOME")
    command = coordinator_command()
    command[0] = os.path.abspath(command[0])
    return CoordinatorUnit(
        command,
        environment,
        request.user,
        request.system,
        state_dir=session.paths.state_dir,
        uid=os.getuid(),
    )


def metrics_unit_of(request: Request, session: Session) -> MetricsUnit:
    """Return the unit of `orch metrics`. Raises UsageError for an address that is none."""
    listen = request.listen or DEFAULT
    parse_listen(listen)
    program = [os.path.abspath(sys.executable), "-P", "-m", "orchestrator.cli.main"]
    environment = _environment(session, "PYTHONPATH")
    return MetricsUnit([*program, "metrics", "--listen", listen], environment, request.user, request.system)


def _environment(session: Session, *kept: str) -> dict[str, str]:
    """Return the session's directories, and those of these variables that are set."""
    paths = {"ORCH_STATE_DIR": session.paths.state_dir, "ORCH_RUNTIME_DIR": session.paths.runtime_dir}
    return paths | {
        name: _absolute(name, session.environ[name]) for name in kept if session.environ.get(name)
    }


def _absolute(name: str, value: str) -> str:
    parts = value.split(os.pathsep) if name == "PYTHONPATH" else [value]
    return os.pathsep.join(os.path.abspath(part) for part in parts)


def install(request: Request, session: Session, systemd: Systemd) -> dict[str, Any]:
    """Write, enable and start the unit, in place of a coordinator that is running."""
    from orchestrator.cli.handover import check_successor, end_coordinator

    systemd.check()
    unit = unit_of(request, session)
    text = unit.text  # raises before anything is changed
    session.paths.ensure()
    try:
        running = session.client().get("/v1/coordinator")
    except CoordinatorUnreachable:
        running = None
    check_successor(session, running)
    systemd.write(text)
    systemd.ctl("daemon-reload")
    systemd.ctl("enable", UNIT)
    if running is not None and not running.get("service"):
        end_coordinator(session, running.get("pid"))  # one journal, one coordinator; the tasks keep running
    systemd.ctl("restart", UNIT)
    return {"schema": 1, "unit": systemd.path, "linger": _linger(request, session, systemd)}


def install_metrics(request: Request, session: Session, systemd: Systemd) -> dict[str, Any]:
    """Write, enable and start the unit of `orch metrics`."""
    systemd.check()
    text = metrics_unit_of(request, session).text  # raises before anything is changed
    token_file(session.paths.state_dir)  # the unit may write nothing
    seen = exposure(parse_listen(request.listen or DEFAULT)[0], with_token=True)
    if seen is not None:
        session.warn(seen)
    systemd.write(text)
    systemd.ctl("daemon-reload")
    systemd.ctl("enable", systemd.unit)
    systemd.ctl("restart", systemd.unit)
    return {"schema": 1, "unit": systemd.path, "linger": _linger(request, session, systemd)}


def _linger(request: Request, session: Session, systemd: Systemd) -> bool:
    """Enable lingering. Without it systemd ends the user's units with the last login."""
    if request.system or systemd.lingers(request.user):
        return True
    try:
        systemd.enable_linger(request.user)
    except OrchestratorError as e:
        session.warn(
            f"{e.message}; the {'metrics end' if request.listen else 'coordinator ends'} when you log out, until an "
            f"administrator runs `loginctl enable-linger {request.user}`"
        )
        return False
    return True


def uninstall(systemd: Systemd) -> bool:
    """Stop and remove the unit; the tasks keep running. Return whether there was one."""
    systemd.check()
    if not os.path.exists(systemd.path):
        return False
    systemd.ctl("disable", "--now", systemd.unit)
    os.unlink(systemd.path)
    systemd.ctl("daemon-reload")
    return True


def describe(request: Request, systemd: Systemd) -> dict[str, Any]:
    """Return the document of `orch service status`."""
    installed = os.path.exists(systemd.path)
    return {
        "schema": 1,
        "unit": systemd.path,
        "installed": installed,
        "enabled": systemd.ask("is-enabled") if installed else "no",
        "active": systemd.ask("is-active") if installed else "no",
        "linger": request.system or systemd.lingers(request.user),
    }


def _parts(
    session: Session, *, system: bool, metrics: bool, listen: str | None = None
) -> tuple[Request, Systemd]:
    if listen is not None and not metrics:
        raise UsageError(
            "--listen belongs to --metrics", hint="the coordinator listens on a Unix socket only"
        )
    request = Request(system, user_name(), (listen or DEFAULT) if metrics else None)
    return request, Systemd(session.environ, system=system, unit=METRICS if metrics else UNIT)


_SYSTEM = click.option("--system", is_flag=True, help="A unit of the machine instead of your user's.")
_METRICS = click.option(
    "--metrics", is_flag=True, help="The unit of `orch metrics` instead of the coordinator's."
)


@click.group(
    cls=Group,
    examples=[
        ("orch service install", "Install and start the unit of your user"),
        ("orch service status", "Show whether it is installed, enabled and active"),
    ],
)
def command() -> None:
    """Run the coordinator, or `orch metrics`, as a systemd unit, which starts at boot and is restarted when it dies."""


@command.command(
    "install",
    acts=True,
    examples=[
        ("orch service install", "Install, enable and start the unit of your user"),
        ("orch service install --print", "Print the unit, and change nothing"),
        ("orch service install --system", "Install a unit of the machine; needs root"),
        ("orch service install --metrics", "Install the unit that serves the metrics to Prometheus"),
    ],
)
@_SYSTEM
@_METRICS
@click.option("--listen", metavar="ADDRESS:PORT", help=f"Where --metrics listens.  [default: {DEFAULT}]")
@click.option("--print", "print_only", is_flag=True, help="Print the unit; change nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print what was done as a document.")
@click.pass_obj
def install_command(
    session: Session, system: bool, metrics: bool, listen: str | None, print_only: bool, as_json: bool
) -> int:
    """Write, enable and start the unit. It runs this orch with its present directories.

    It replaces a running coordinator; the tasks keep running. Repeat it after an upgrade of orch.
    """
    request, systemd = _parts(session, system=system, metrics=metrics, listen=listen)
    if print_only:
        unit = metrics_unit_of(request, session) if metrics else unit_of(request, session)
        session.put(unit.text.rstrip("\n"))
        return 0
    document = (install_metrics if metrics else install)(request, session, systemd)
    if as_json:
        session.put_json(document)
    else:
        session.put(document["unit"])
    session.say(f"{systemd.unit} installed and started")
    if session.environ.get("SSH_AUTH_SOCK") and not metrics:
        session.warn(
            "the unit has no ssh-agent; it needs a key without a passphrase (`identity_file` in the spec)"
        )
    return 0


@command.command(
    "uninstall",
    acts=True,
    examples=[
        ("orch service uninstall", "Stop and remove the unit of your user"),
        ("orch service uninstall --system", "Stop and remove the unit of the machine"),
    ],
)
@_SYSTEM
@_METRICS
@click.pass_obj
def uninstall_command(session: Session, system: bool, metrics: bool) -> int:
    """Stop and remove the unit. The tasks keep running; `orch coordinator start` adopts them."""
    _, systemd = _parts(session, system=system, metrics=metrics)
    removed = uninstall(systemd)
    then = "" if metrics else "; nobody watches the tasks until `orch coordinator start`"
    session.say(f"{systemd.unit} removed{then}" if removed else f"{systemd.unit} is not installed")
    return 0


@command.command(
    "status",
    examples=[
        ("orch service status", "Show the unit of your user"),
        ("orch service status --system --json", "Show the unit of the machine, for scripts"),
    ],
)
@_SYSTEM
@_METRICS
@click.option("--json", "as_json", is_flag=True, help="Print the document, for scripts.")
@click.pass_obj
def status_command(session: Session, system: bool, metrics: bool, as_json: bool) -> int:
    """Show whether the unit is installed, enabled and active."""
    request, systemd = _parts(session, system=system, metrics=metrics)
    document = describe(request, systemd)
    if as_json:
        session.put_json(document)
    else:
        words = {True: "yes", False: "no"}
        rows = [(key, words.get(value, value)) for key, value in document.items() if key != "schema"]
        session.put("\n".join(f"{key:<10} {value}" for key, value in rows))
    return 0
