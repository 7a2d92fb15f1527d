"""How the processes of a run learn of each other: environment that each is given once all have joined.

A row of `strategy.STRATEGIES` names one of these functions. Each takes the plan, `host:port` of every task, and the
task that is told.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TypeVar, cast

from orchestrator.core.launching import horovod
from orchestrator.core.plan import Plan, TaskId

_T = TypeVar("_T")


class Addresses(dict[TaskId, str]):
    """`host:port` of every task. What all of them are told alike is made once, and not for each."""

    def __init__(self, addresses: Mapping[TaskId, str]) -> None:
        super().__init__(addresses)
        self._made: dict[object, object] = {}

    def once(self, what: object, make: Callable[[], _T]) -> _T:
        """Return what `make` has returned at the first question for this."""
        if what not in self._made:
            self._made[what] = make()
        return cast("_T", self._made[what])


Wiring = Callable[[Plan, Addresses, TaskId], dict[str, str]]


def none(_plan: Plan, _addresses: Addresses, _task: TaskId) -> dict[str, str]:
    """Tell nothing: there is one process."""
    return {}


def tf_config(plan: Plan, addresses: Addresses, task: TaskId) -> dict[str, str]:
    """Give TF_CONFIG; a sole task gets none.

    The evaluator is in nobody's cluster, or the others would wait for it, and nobody is in the evaluator's: with
    the workers in it, TensorFlow 2.21 pings them from there and aborts the evaluation when one is away.
    """
    if len(plan.tasks) == 1:
        return {}
    evaluates = task.type == "evaluator"
    cluster = addresses.once(("cluster", evaluates), lambda: _cluster(plan, addresses, evaluates=evaluates))
    own = json.dumps({"type": task.type, "index": task.index})
    return {"TF_CONFIG": f'{{"cluster": {cluster}, "task": {own}}}'}


def _cluster(plan: Plan, addresses: Addresses, *, evaluates: bool) -> str:
    cluster: dict[str, list[str]] = {}
    for peer in sorted(placed.id for placed in plan.tasks):
        if (peer.type == "evaluator") == evaluates:
            cluster.setdefault(peer.type, []).append(addresses[peer])
    return json.dumps(cluster)


def ranks(plan: Plan, addresses: Addresses, task: TaskId) -> dict[str, str]:
    """Give ORCH_RANK and its kin, with the names that torch made common beside them.

    Rank 0 is the first task; the coordinator of the processes' own library listens on its address.
    """
    ids = addresses.once("ids", lambda: sorted(placed.id for placed in plan.tasks))
    all_ranks = addresses.once("ranks", lambda: {each: rank for rank, each in enumerate(ids)})
    leader = addresses[ids[0]]
    host, _, port = leader.rpartition(":")
    rank, size, local = str(all_ranks[task]), str(len(ids)), str(plan.task(task).slot)
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


def horovod_ranks(plan: Plan, addresses: Addresses, task: TaskId) -> dict[str, str]:
    """Give the ranks, and HOROVOD_RANK and its kin as `horovodrun` would; the rendezvous is beside rank 0."""
    places = addresses.once("places", lambda: horovod.slots(plan))
    return ranks(plan, addresses, task) | horovod.environment(plan, addresses, task, places)
