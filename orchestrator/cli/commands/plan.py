"""`orch plan`: show the resolved plan of a cluster spec. No host is contacted without --now."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from orchestrator.cli.help import json_option, orch_command
from orchestrator.cli.inventory_option import inventory_option
from orchestrator.cli.session import Paint, Session
from orchestrator.cli.show.tables import table
from orchestrator.core.errors import CoordinatorUnreachable, UsageError
from orchestrator.core.plan import Plan
from orchestrator.core.words import counted
from orchestrator.reporting.fault_costs import sentence
from orchestrator.reporting.launch_document import document


def text(document: Mapping[str, Any], paint: Paint) -> str:
    """Return the plan for people: a table of the tasks, then the command and environment of each."""
    tasks = document["tasks"]
    lines = [
        f"{paint(document['name'], 'bold')}  {document['strategy']}, {counted(len(tasks), 'task')}",
        *([f"  inventory: {document['inventory']}"] if document["inventory"] else []),
        f"  workdir: {document['workdir']}",
        f"  checkpoints: {document['checkpoint_dir'] or 'none; a restart begins at step 0'}",
        f"  {sentence(document['fault_costs'])}",
    ]
    lines += [
        f"  spare: {spare['host']}, for {', '.join(spare['for']) or 'no host: it has too few GPUs or slots'}"
        for spare in document["spares"]
    ]
    lines += [
        f"  at least: {counted(fewest, type_)}, if a host is lost and no spare is ready"
        for type_, fewest in document["replicas_min"].items()
    ]
    lines += [f"  each {type_} goes where there is {needs}" for type_, needs in document["needs"].items()]
    rows = [["TASK", "HOST", "GPUS", "ADDRESS"]]
    rows += [[t["task"], t["host"], ",".join(map(str, t["gpus"])) or "none", t["address"]] for t in tasks]
    styles = {(0, column): ("dim",) for column in range(len(rows[0]))}
    lines += ["", *(f"  {line}" for line in table(rows, paint, styles=styles))]
    placement = document.get("placement") or {}
    lines += [f"  not now: {placement['why']}"] if placement and not placement["fits"] else []
    lines += [f"  not elsewhere: {why}" for why in (placement.get("against") or {}).values()]
    lines += [f"  first, on each host: {document['activate']}"] if document["activate"] else []
    lines += [
        f"  {host} is reached by: {command}"
        for host, commands in document["proxy_commands"].items()
        for command in commands
    ]
    for task in tasks:
        lines += ["", f"  {paint(task['task'], 'bold')} on {task['host']}: {shlex.join(task['command'])}"]
        lines += [f"    {name}={value}" for name, value in sorted(task["env"].items())]
    return "\n".join(lines)


def show(file: str, session: Session, *, now: bool = False) -> None:
    """Load the file and print its plan, for `orch plan` and `orch up --dry-run`."""
    from orchestrator.spec.load import load_spec
    from orchestrator.spec.plan import load_plan

    plan, _ = load_plan(file)
    placement: Mapping[str, Any] | None = None
    if plan.has_choice:
        from orchestrator.client.starting import ensure_coordinator
        from orchestrator.client.submit import placed_now

        if now:
            ensure_coordinator(session)
        try:
            plan, placement = placed_now(plan, session.client(), look=now)
        except (CoordinatorUnreachable, UsageError):
            if now:
                raise
    plan_document = {**document(plan), "proxy_commands": _proxy_commands(plan, session)}
    plan_document["inventory"] = load_spec(file).inventory
    plan_document["placement"] = placement and {key: placement[key] for key in ("fits", "why", "against")}
    session.answer(plan_document, text(plan_document, session.paint))
    if not session.wants_json:
        session.say("Ports differ from run to run and from generation to generation; these are examples")


def _proxy_commands(plan: Plan, session: Session) -> dict[str, list[str]]:
    """Return, by host, the commands of ssh_config by which it is reached."""
    hosts = [host for host in plan.hosts if host.transport == "ssh"]
    if not hosts or not any(
        word in path.read_text(encoding="utf-8", errors="replace").lower()
        for word in ("proxycommand", "include")
        for path in (Path.home() / ".ssh/config", Path("/etc/ssh/ssh_config"))
        if path.is_file()
    ):
        return {}
    from orchestrator.head.reach.ssh.transport import SshTransport

    ssh = SshTransport(Path(session.paths.known_hosts))
    return {host.name: commands for host in hosts if (commands := ssh.proxy_commands(host))}


@orch_command(
    examples=[
        ("orch plan cluster.yaml", "Show hosts, GPUs, ports, commands and environments"),
        (
            "orch plan cluster.yaml --now",
            "Ask the hosts what is free, and show where the run would go, and why",
        ),
        ("orch plan cluster.yaml --json", "The same as a document, with TF_CONFIG parsed"),
    ],
)
@click.argument("file", type=click.Path(), metavar="FILE")
@inventory_option
@click.option(
    "--now", is_flag=True, help="Ask the hosts what others hold there, and place the tasks on what is free."
)
@json_option("Print the document, for scripts.")
def command(session: Session, file: str, now: bool) -> None:
    """Show what FILE resolves to: for each task its host, GPUs, port, TF_CONFIG, environment and command.

    Nothing is started. The tasks are placed on what this head node's other runs leave free; only with --now are the
    hosts asked what else is held there.
    """
    show(file, session, now=now)
