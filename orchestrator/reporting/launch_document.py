"""The document of `orch plan --json`: how each task of a plan or of a run is started. No host is asked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from orchestrator.core.launching.environment import (
    checkpoint_dir,
    endpoint,
    environment,
    port_candidates,
    wiring,
)
from orchestrator.core.launching.placement import has_room, particular
from orchestrator.core.plan import Plan, TaskId, TaskPlan
from orchestrator.core.state.run import Run
from orchestrator.reporting.fault_costs import fault_costs

HIDDEN = "***"
_RUN_ID = "{name}-YYYYMMDD-HHMMSS"
"""A placeholder for the id, which the run gets when it is submitted."""
_GENERATION = 1


def document(plan: Plan) -> dict[str, Any]:
    """Return the document of a plan, for a first generation whose ports are all free."""
    run_id = _RUN_ID.format(name=plan.name)
    ports = {t.id: port_candidates(plan, run_id, _GENERATION, t.id)[0] for t in plan.tasks}
    return _document(plan, run_id, _GENERATION, ports, {})


def launched_document(run: Run) -> dict[str, Any]:
    """Return the document of a run's newest generation, with its tasks' real hosts and ports.

    `ports_held` is false until all tasks have joined; until then, some ports are those that they try first.
    """
    plan, generation = run.placed, max(run.generation, _GENERATION)
    held = {task.id: task.port for task in run.tasks if task.port is not None}
    ports = {
        t.id: held.get(t.id) or port_candidates(plan, run.run_id, generation, t.id)[0] for t in plan.tasks
    }
    restarts = {task.id: run.budget.restarts + task.budget.restarts for task in run.tasks}
    document = _document(plan, run.run_id, generation, ports, restarts)
    return {
        **document,
        "run_id": run.run_id,
        "generation": generation,
        "ports_held": held.keys() >= ports.keys(),
    }


def _document(
    plan: Plan, run_id: str, generation: int, ports: Mapping[TaskId, int], restarts: Mapping[TaskId, int]
) -> dict[str, Any]:
    addresses = {t.id: endpoint(plan.host(t.host).peer_address, ports[t.id]) for t in plan.tasks}
    # The hosts for whose tasks the spare has room
    return {
        "schema": 1,
        "name": plan.name,
        "fault_costs": fault_costs(plan),
        "strategy": plan.strategy,
        "workdir": plan.workdir,
        "activate": plan.hosts[0].activate,
        "hosts": [{"name": h.name, "transport": h.transport, "spare": h.spare} for h in plan.hosts],
        "spares": [
            {"host": h.name, "for": [host for host in plan.hosts_used if has_room(plan, host, h.name)]}
            for h in plan.hosts
            if h.spare
        ],
        "needs": {ask.type: particular(ask) for ask in plan.needs if ask.is_particular},
        "replicas_min": dict(plan.replicas_min),
        "checkpoint_dir": plan.checkpoint.dir if plan.checkpoint else None,
        "tasks": [
            _task(plan, task, ports[task.id], addresses)
            | {"env": _env(plan, run_id, generation, task.id, restarts.get(task.id, 0), addresses)}
            for task in plan.tasks
        ],
    }


def _env(
    plan: Plan,
    run_id: str,
    generation: int,
    task: TaskId,
    restarts: int,
    addresses: Mapping[TaskId, str],
) -> dict[str, str]:
    directory = checkpoint_dir(plan, generation, task)
    env = environment(plan, run_id, generation, task, restarts, directory, "<log directory on the host>")
    return env | wiring(plan, addresses, task) | dict.fromkeys(plan.secrets, HIDDEN)


def _task(plan: Plan, task: TaskPlan, port: int, addresses: Mapping[TaskId, str]) -> dict[str, Any]:
    variables = wiring(plan, addresses, task.id)
    return {
        "task": str(task.id),
        "host": task.host,
        "gpus": list(task.gpus),
        "port": port,
        "address": addresses[task.id],
        "tf_config": json.loads(variables["TF_CONFIG"]) if "TF_CONFIG" in variables else None,
        "command": [plan.host(task.host).python, *plan.command],
    }
