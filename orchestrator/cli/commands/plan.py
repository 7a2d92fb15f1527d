"""`orch plan`: show what a cluster spec resolves to. No host is contacted."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

import click

from orchestrator.cli.help import Command
from orchestrator.cli.render import table
from orchestrator.cli.session import Paint, Session
from orchestrator.core.launch import (
    checkpoint_dir,
    endpoint,
    environment,
    port_candidates,
    wiring,
)
from orchestrator.core.placement import has_room
from orchestrator.core.plan import Plan, TaskId, TaskPlan
from orchestrator.core.words import counted

HIDDEN = "***"
_RUN_ID = "{name}-YYYYMMDD-HHMMSS"
"""In place of the id, which the run gets when it is submitted."""
_GENERATION = 1


def document(plan: Plan) -> dict[str, Any]:
    """Return the plan for `--json`, as a first generation would start if all of its ports are free."""
    run_id = _RUN_ID.format(name=plan.name)
    ports = {t.id: port_candidates(plan, run_id, _GENERATION, t.id)[0] for t in plan.tasks}
    addresses = {t.id: endpoint(_data_address(plan, t), ports[t.id]) for t in plan.tasks}
    return {
        "schema": 1,
        "name": plan.name,
        "strategy": plan.strategy,
        "workdir": plan.workdir,
        "hosts": [{"name": h.name, "transport": h.transport, "spare": h.spare} for h in plan.hosts],
        "spares": [{"host": h.name, "for": _slots(plan, h.name)} for h in plan.hosts if h.spare],
        "replicas_min": dict(plan.replicas_min),
        "checkpoint_dir": plan.checkpoint.dir if plan.checkpoint else None,
        "tasks": [_task(plan, task, run_id, ports[task.id], addresses) for task in plan.tasks],
    }


def _slots(plan: Plan, spare: str) -> list[str]:
    """Return the hosts whose tasks the spare has room for."""
    return [host for host in plan.hosts_used if has_room(plan, host, spare)]


def _data_address(plan: Plan, task: TaskPlan) -> str:
    host = plan.host(task.host)
    return host.data_address or host.address or host.name


def _task(
    plan: Plan, task: TaskPlan, run_id: str, port: int, addresses: Mapping[TaskId, str]
) -> dict[str, Any]:
    directory = checkpoint_dir(plan, _GENERATION, task.id)
    env = environment(plan, run_id, _GENERATION, task.id, 0, directory, "<log directory on the host>")
    told = wiring(plan, addresses, task.id)
    env |= told
    env |= dict.fromkeys(plan.secrets, HIDDEN)
    return {
        "task": str(task.id),
        "host": task.host,
        "gpus": list(task.gpus),
        "port": port,
        "address": addresses[task.id],
        "tf_config": json.loads(told["TF_CONFIG"]) if "TF_CONFIG" in told else None,
        "env": env,
        "command": [plan.host(task.host).python, plan.script, *plan.args],
    }


def text(document: Mapping[str, Any], paint: Paint) -> str:
    """Return the plan for people: a table of the tasks, then the command and environment of each."""
    tasks = document["tasks"]
    lines = [
        f"{paint(document['name'], 'bold')}  {document['strategy']}, {counted(len(tasks), 'task')}",
        f"  workdir: {document['workdir']}",
        f"  checkpoints: {document['checkpoint_dir'] or 'none; a restart begins at step 0'}",
    ]
    lines += [
        f"  spare: {spare['host']}, for {', '.join(spare['for']) or 'no host: it has too few GPUs or slots'}"
        for spare in document["spares"]
    ]
    lines += [
        f"  at least: {counted(fewest, type_)}, if a host is lost and no spare is ready"
        for type_, fewest in document["replicas_min"].items()
    ]
    rows = [["TASK", "HOST", "GPUS", "ADDRESS"]]
    rows += [[t["task"], t["host"], ",".join(map(str, t["gpus"])) or "none", t["address"]] for t in tasks]
    styles = {(0, column): ("dim",) for column in range(len(rows[0]))}
    lines += ["", *(f"  {line}" for line in table(rows, paint, styles=styles))]
    for task in tasks:
        lines += ["", f"  {paint(task['task'], 'bold')} on {task['host']}: {shlex.join(task['command'])}"]
        lines += [f"    {name}={value}" for name, value in sorted(task["env"].items())]
    return "\n".join(lines)


def show(file: str, session: Session, *, as_json: bool) -> int:
    """Load the file and print its plan, for `orch plan` and `orch up --dry-run`."""
    from orchestrator.spec.plan import load_plan

    plan, _ = load_plan(file)
    found = document(plan)
    if as_json:
        session.put_json(found)
    else:
        session.put(text(found, session.paint))
        session.say("Ports differ from run to run and from generation to generation; these are examples")
    return 0


@click.command(
    cls=Command,
    examples=[
        ("orch plan cluster.yaml", "Show hosts, GPUs, ports, commands and environments"),
        ("orch plan cluster.yaml --json", "The same as a document, with TF_CONFIG parsed"),
    ],
)
@click.argument("file", type=click.Path(), metavar="FILE")
@click.option("--json", "as_json", is_flag=True, help="Print the document, for scripts.")
@click.pass_obj
def command(session: Session, file: str, as_json: bool) -> int:
    """Show what FILE resolves to: of each task the host, GPUs, port, TF_CONFIG, environment and command.

    Nothing is started, and no host is contacted.
    """
    return show(file, session, as_json=as_json)
