"""The document of `orch plan --json`: what every task of a plan is started with. No host is asked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from orchestrator.core.launch import (
    checkpoint_dir,
    endpoint,
    environment,
    port_candidates,
    wiring,
)
from orchestrator.core.placement import has_room
from orchestrator.core.plan import Plan, TaskId, TaskPlan

HIDDEN = "***"
_RUN_ID = "{name}-YYYYMMDD-HHMMSS"
"""In place of the id, which the run gets when it is submitted."""
_GENERATION = 1


def document(plan: Plan) -> dict[str, Any]:
    """Return the plan for `--json`, as a first generation would start if all of its ports are free."""
    run_id = _RUN_ID.format(name=plan.name)
    ports = {t.id: port_candidates(plan, run_id, _GENERATION, t.id)[0] for t in plan.tasks}
    addresses = {t.id: endpoint(plan.host(t.host).peer_address, ports[t.id]) for t in plan.tasks}
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
