"""`orch service`: run the coordinator as a systemd unit, which starts at boot and is restarted."""

from __future__ import annotations

import os
from typing import Any

import click

from orchestrator.both.logind import user_name
from orchestrator.cli.help import Group, json_option
from orchestrator.cli.session import Session
from orchestrator.core.errors import CoordinatorUnreachable, OrchestratorError
from orchestrator.head.node.systemd import UNIT, CoordinatorUnit, Systemd


def unit_of(session: Session, *, system: bool, user: str) -> CoordinatorUnit:
    """Return the unit for this program and this session's directories, which runs as `user`."""
    from orchestrator.client.starting import coordinator_command

    environment = {"ORCH_STATE_DIR": session.paths.state_dir, "ORCH_RUNTIME_DIR": session.paths.runtime_dir}
    # What this command needed to import its modules, the directory of local tasks, and where notify.yaml lies.
    for name in ("PYTHONPATH", "ORCH_HOST_DIR", "XDG_CONFIG_HOME"):
        if value := session.environ.get(name):
            parts = value.split(os.pathsep) if name == "PYTHONPATH" else [value]
            environment[name] = os.pathsep.join(os.path.abspath(part) for part in parts)
    command = coordinator_command()
    command[0] = os.path.abspath(command[0])
    return CoordinatorUnit(
        command=command,
        environment=environment,
        user=user,
        system=system,
        state_dir=session.paths.state_dir,
        uid=os.getuid(),
    )


def install(session: Session, systemd: Systemd, *, user: str) -> dict[str, Any]:
    """Write, enable and start the unit, in place of a coordinator that is running."""
    from orchestrator.cli.handover import check_successor, end_coordinator

    systemd.check()
    text = unit_of(session, system=systemd.system, user=user).text  # raises before anything is changed
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
    lingers = systemd.system or systemd.lingers(user)
    if not lingers:
        # Without lingering systemd ends the user's units with the last login.
        try:
            systemd.enable_linger(user)
            lingers = True
        except OrchestratorError as e:
            session.warn(
                f"{e.message}; the coordinator ends when you log out, until an administrator runs `loginctl "
                f"enable-linger {user}`"
            )
    return {"schema": 1, "unit": systemd.path, "linger": lingers}


def uninstall(systemd: Systemd) -> bool:
    """Stop and remove the unit; the tasks keep running. Return whether there was one."""
    systemd.check()
    if not os.path.exists(systemd.path):
        return False
    systemd.ctl("disable", "--now", UNIT)
    os.unlink(systemd.path)
    systemd.ctl("daemon-reload")
    return True


def describe(systemd: Systemd, *, user: str) -> dict[str, Any]:
    """Return the document of `orch service status`."""
    installed = os.path.exists(systemd.path)
    return {
        "schema": 1,
        "unit": systemd.path,
        "installed": installed,
        "enabled": systemd.ask("is-enabled") if installed else "no",
        "active": systemd.ask("is-active") if installed else "no",
        "linger": systemd.system or systemd.lingers(user),
    }


_SYSTEM = click.option("--system", is_flag=True, help="A unit of the machine instead of your user's.")


@click.group(
    cls=Group,
    examples=[
        ("orch service install", "Install and start the unit of your user"),
        ("orch service status", "Show whether it is installed, enabled and active"),
    ],
)
def command() -> None:
    """Run the coordinator as a systemd unit, which starts at boot and is restarted when it dies."""


@command.subcommand(
    "install",
    acts=True,
    examples=[
        ("orch service install", "Install, enable and start the unit of your user"),
        ("orch service install --print", "Print the unit, and change nothing"),
        ("orch service install --system", "Install a unit of the machine; needs root"),
    ],
)
@_SYSTEM
@click.option("--print", "print_only", is_flag=True, help="Print the unit; change nothing.")
@json_option("Print what was done as a document.")
def install_command(session: Session, system: bool, print_only: bool) -> None:
    """Write, enable and start the unit. It runs this orch with its current directories.

    It replaces a running coordinator; the tasks keep running. Repeat it after an upgrade of orch.
    """
    if print_only:
        session.put(unit_of(session, system=system, user=user_name()).text.rstrip("\n"))
        return
    document = install(session, Systemd(session.environ, system=system), user=user_name())
    session.answer(document, document["unit"])
    session.say(f"{UNIT} installed and started")
    if session.environ.get("SSH_AUTH_SOCK"):
        session.warn(
            "the unit has no ssh-agent; it needs a key without a passphrase (`identity_file` in the spec)"
        )


@command.subcommand(
    "uninstall",
    acts=True,
    examples=[
        ("orch service uninstall", "Stop and remove the unit of your user"),
        ("orch service uninstall --system", "Stop and remove the unit of the machine"),
    ],
)
@_SYSTEM
def uninstall_command(session: Session, system: bool) -> None:
    """Stop and remove the unit. The tasks keep running; `orch coordinator start` adopts them."""
    if uninstall(Systemd(session.environ, system=system)):
        session.say(f"{UNIT} removed; nobody watches the tasks until `orch coordinator start`")
    else:
        session.say(f"{UNIT} is not installed")


@command.subcommand(
    "status",
    examples=[
        ("orch service status", "Show the unit of your user"),
        ("orch service status --system --json", "Show the unit of the machine, for scripts"),
    ],
)
@_SYSTEM
@json_option("Print the document, for scripts.")
def status_command(session: Session, system: bool) -> None:
    """Show whether the unit is installed, enabled and active."""
    document = describe(Systemd(session.environ, system=system), user=user_name())
    words = {True: "yes", False: "no"}
    rows = [(key, words.get(value, value)) for key, value in document.items() if key != "schema"]
    session.answer(document, *(f"{key:<10} {value}" for key, value in rows))
