"""The document that the entry of each pod reads: what its task is, and how all of them are named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from orchestrator.core.launching.environment import environment, has_scratch, wiring
from orchestrator.core.launching.wiring import Addresses
from orchestrator.core.phases import stall
from orchestrator.core.plan import HostPlan, Plan, TaskId, TaskPlan
from orchestrator.spec.kubernetes.wishes import Wishes, pod_names

PORT = "@PORT@"
"""In the place of the port, which the entry fills in: each generation has another one."""

_TOLD_BY_THE_ENTRY = ("ORCH_RUN", "ORCH_HOST", "ORCH_GENERATION", "ORCH_RESTARTS")


def in_pods(plan: Plan) -> Plan:
    """Return the plan with each task on a host of its own, by its stable name: `mnist-worker-0-1.mnist`."""
    placed = sorted(plan.tasks, key=lambda task: task.id)
    hosts, tasks = [], []
    for task, name in zip(placed, pod_names(plan), strict=True):
        gpus = tuple(range(len(task.gpus)))  # a container sees its own from 0
        address = f"{name}.{plan.name}"
        hosts.append(HostPlan(name, address=address, data_address=address, gpus=gpus))
        tasks.append(TaskPlan(task.id, name, gpus))
    return replace(plan, hosts=tuple(hosts), tasks=tuple(tasks))


def settings(plan: Plan, wishes: Wishes) -> dict[str, Any]:
    """Return the document. It holds no secret's value."""
    moved = in_pods(plan)
    ids = sorted(task.id for task in moved.tasks)
    addresses = Addresses({task: f"{moved.host(moved.task(task).host).address}:{PORT}" for task in ids})
    restart, timing = plan.restart, plan.timing
    return {
        "schema": 1,
        "name": plan.name,
        "chief": str(plan.chief),
        "tasks": {str(task): _task(moved, task, addresses) for task in ids},
        "python": wishes.python,
        "script": plan.script,
        "args": list(plan.args),
        "runtime": plan.runtime,
        "code_dir": wishes.code_dir,
        "ports": list(plan.ports),
        "secrets": list(plan.secrets),
        "checkpoint": plan.checkpoint and {"dir": plan.checkpoint.dir, "keep": plan.checkpoint.keep},
        "timing": {
            "stall_after_s": timing.stall_after_s,
            "stall_floor_s": stall.FLOOR_S,
            "stall_factor": stall.PAUSE_FACTOR,
            "on_stall": restart.on_stall,
            "kill_grace_s": timing.kill_grace_s,
            "save_wait_s": wishes.save_wait_s,
            "without_progress_max": restart.without_progress_max,
        },
    }


def _task(plan: Plan, task: TaskId, addresses: Addresses) -> dict[str, Any]:
    env = environment(plan, "", 0, task, 0, None)
    scratch = has_scratch(plan, task)
    return {
        "env": {name: text for name, text in env.items() if name not in _TOLD_BY_THE_ENTRY},
        "wiring": wiring(plan, addresses, task),
        "saves": task == plan.chief or task.type == "evaluator",
        "scratch": scratch,
        "trains": task == plan.chief or scratch,
    }
