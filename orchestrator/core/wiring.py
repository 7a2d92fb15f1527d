"""How the processes of a run learn of each other: environment that each is given once all have joined.

A row of `strategy.STRATEGIES` names one of these functions. Each takes the plan, `host:port` of every task, and the
task that is told.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from orchestrator.core import horovod
from orchestrator.core.plan import Plan, TaskId

Wiring = Callable[[Plan, Mapping[TaskId, str], TaskId], dict[str, str]]


def none(_plan: Plan, _addresses: Mapping[TaskId, str], _task: TaskId) -> dict[str, str]:
    """Tell nothing: there is one process."""
    return {}


def tf_config(plan: Plan, addresses: Mapping[TaskId, str], task: TaskId) -> dict[str, str]:
    """Give TF_CONFIG; a sole task gets none.

    The evaluator is in nobody's cluster, or the others would wait for it, and nobody is in the evaluator's: with
    the workers in it, TensorFlow 2.21 pings them from there and aborts the evaluation when one is away.
    """
    if len(plan.tasks) == 1:
        return {}
    cluster: dict[str, list[str]] = {}
    for peer in sorted(placed.id for placed in plan.tasks):
        if (peer.type == "evaluator") == (task.type == "evaluator"):
            cluster.setdefault(peer.type, []).append(addresses[peer])
    config = {"cluster": cluster, "task": {"type": task.type, "index": task.index}}
    return {"TF_CONFIG": json.dumps(config)}


def ranks(plan: Plan, addresses: Mapping[TaskId, str], task: TaskId) -> dict[str, str]:
    """Give ORCH_RANK and its kin, with the names that torch made common beside them.

    Rank 0 is the first task; the coordinator of the processes' own library listens on its address.
    """
    ids = sorted(placed.id for placed in plan.tasks)
    leader = addresses[ids[0]]
    host, _, port = leader.rpartition(":")
    rank, size, local = str(ids.index(task)), str(len(ids)), str(plan.task(task).slot)
    return {
        "ORCH_RANK": rank,
        "ORCH_WORLD_SIZE": size,
        "ORCH_LOCAL_RANK": local,
        "ORCH_COORDINATOR_ADDRESS": leader,
        "RANK": rank,
        "WORLD_SIZE": size,
        "LOCAL_RANK": local,
        "MASTER_ADDR": host.strip("[]"),
        "MASTER_PORT": port,
    }


def horovod_ranks(plan: Plan, addresses: Mapping[TaskId, str], task: TaskId) -> dict[str, str]:
    """Give the ranks, and HOROVOD_RANK and its kin as `horovodrun` would; the rendezvous is beside rank 0."""
    return ranks(plan, addresses, task) | horovod.environment(plan, addresses, task)
