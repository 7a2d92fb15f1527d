"""`orch service`: the coordinator as a systemd unit, so that it begins at boot and comes back when it dies."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import click

from orchestrator.adapters.head.systemd import UNIT, Systemd, Unit
from orchestrator.adapters.host.logind import user_name
from orchestrator.cli.session import Session
from orchestrator.core.errors import CoordinatorUnreachable, OrchestratorError


@dataclass(frozen=True, slots=True)
class Request:
    """For whom. `user` is who the coordinator runs as."""

    system: bool
    user: str


def unit_of(request: Request, session: Session) -> Unit:
    """This very program, with these very directories."""
    from orchestrator.cli.starting import coordinator_command

    environment = {
        "ORCH_STATE_DIR": session.paths.state_dir,
        "ORCH_RUNTIME_DIR": session.paths.runtime_dir,
    }
    # What this command needed to find its modules, and where local tasks and their records are.
    kept = ("PYTHONPATH", "ORCH_HOST_DIR")
    environment |= {
        name: _absolute(name, session.environ[name]) for name in kept if session.environ.get(name)
    }
    command = coordinator_command()
    command[0] = os.path.abspath(command[0])
    return Unit(
        command, environment, session.paths.state_dir, request.user, os.getuid(), system=request.system
    )


def _absolute(name: str, value: str) -> str:
    parts = value.split(os.pathsep) if name == "PYTHONPATH" else [value]
    return os.pathsep.join(os.path.abspath(part) for part in parts)


def install(request: Request, session: Session, systemd: Systemd) -> dict[str, Any]:
    """Write the unit, hand a running coordinator over to it, and let it begin at boot."""
    from orchestrator.cli.handover import check_successor, end_coordinator

    systemd.check()
    unit = unit_of(request, session)
    text = unit.text  # refused before anything is changed
    session.paths.ensure()
    running = _running(session)
    check_successor(session, running)
    systemd.write(text)
    systemd.ctl("daemon-reload")
    systemd.ctl("enable", UNIT)
    if running is not None and not running.get("service"):
        end_coordinator(session, running.get("pid"))  # one journal, one coordinator; tasks go on
    systemd.ctl("restart", UNIT)
    return {"schema": 1, "unit": systemd.path, "linger": _linger(request, session, systemd)}


def _linger(request: Request, session: Session, systemd: Systemd) -> bool:
    """Without it the user's manager, and all in it, ends with the last login."""
    if request.system or systemd.lingers(request.user):
        return True
    try:
        systemd.enable_linger(request.user)
    except OrchestratorError as e:
        session.say(
            f"{e.message}; until somebody may run `loginctl enable-linger {request.user}`, the coordinator "
            "ends when you log out (the tasks on hosts go on)"
        )
        return False
    return True


def uninstall(systemd: Systemd) -> bool:
    """End it and forget the unit; tasks go on. Whether there was one."""
    systemd.check()
    if not os.path.exists(systemd.path):
        return False
    systemd.ctl("disable", "--now", UNIT)
    os.unlink(systemd.path)
    systemd.ctl("daemon-reload")
    return True


def describe(request: Request, systemd: Systemd) -> dict[str, Any]:
    """For `--json`."""
    installed = os.path.exists(systemd.path)
    return {
        "schema": 1,
        "unit": systemd.path,
        "installed": installed,
        "enabled": systemd.ask("is-enabled") if installed else "no",
        "active": systemd.ask("is-active") if installed else "no",
        "linger": request.system or systemd.lingers(request.user),
    }


def _running(session: Session) -> dict[str, Any] | None:
    try:
        return session.client().get("/v1/coordinator")
    except CoordinatorUnreachable:
        return None


def _parts(session: Session, *, system: bool) -> tuple[Request, Systemd]:
    return Request(system, user_name()), Systemd(session.environ, system=system)


_SYSTEM = click.option("--system", is_flag=True, help="A unit of the machine, not of the user's own manager.")


@click.group()
def command() -> None:
    """The coordinator as a systemd unit: begins at boot, and again when it dies."""


@command.command("install", short_help="Write the unit, enable it, and start it.")
@_SYSTEM
@click.option("--print", "print_only", is_flag=True, help="Show the unit; change nothing.")
@click.option("--json", "as_json", is_flag=True, help="What was done, for scripts.")
@click.pass_obj
def install_command(session: Session, system: bool, print_only: bool, as_json: bool) -> int:
    """Write the unit for this very orch and these directories, enable and start it.

    A coordinator that runs hands over to it; no task is touched. Again after an upgrade writes it anew.
    """
    request, systemd = _parts(session, system=system)
    if print_only:
        session.put(unit_of(request, session).text.rstrip("\n"))
        return 0
    document = install(request, session, systemd)
    if as_json:
        session.put_json(document)
    else:
        session.put(document["unit"])
    session.say(f"{UNIT} is installed and started; `orch service status` shows it")
    if session.environ.get("SSH_AUTH_SOCK"):
        session.say(
            "note: it has no ssh-agent; keys must be readable without one (identity_file, no passphrase)"
        )
    return 0


@command.command("uninstall")
@_SYSTEM
@click.pass_obj
def uninstall_command(session: Session, system: bool) -> int:
    """End and remove the unit. The tasks go on; `orch coordinator start` takes them up again."""
    _, systemd = _parts(session, system=system)
    removed = uninstall(systemd)
    session.say(
        f"{UNIT} is removed; tasks go on unwatched until `orch coordinator start`"
        if removed
        else f"{UNIT} is not installed"
    )
    return 0


@command.command("status")
@_SYSTEM
@click.option("--json", "as_json", is_flag=True, help="The document, for scripts.")
@click.pass_obj
def status_command(session: Session, system: bool, as_json: bool) -> int:
    """Show whether the unit is installed, enabled and active."""
    request, systemd = _parts(session, system=system)
    document = describe(request, systemd)
    if as_json:
        session.put_json(document)
    else:
        session.put("\n".join(f"{key:<10} {document[key]}" for key in list(document)[1:]))
    return 0
