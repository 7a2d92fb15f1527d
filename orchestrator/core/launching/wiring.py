"""How the processes of a run learn of each other: the environment that each gets once all have joined.

A row of `strategy.STRATEGIES` names one of these functions. Each takes the plan, `host:port` of every task, and the
task whose environment it returns.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TypeVar, cast

from orchestrator.core.plan import Plan, TaskId

_T = TypeVar("_T")


class Addresses(dict[TaskId, str]):
    """`host:port` of every task. What is the same for all tasks is made once, and not for each."""

    def __init__(self, addresses: Mapping[TaskId, str]) -> None:
        super().__init__(addresses)
        self._made: dict[object, object] = {}

    def once(self, what: object, make: Callable[[], _T]) -> _T:
        """Return what `make` returned when this key was first asked for."""
        if what not in self._made:
            self._made[what] = make()
        return cast("_T", self._made[what])


Wiring = Callable[[Plan, Addresses, TaskId], dict[str, str]]


def none(_plan: Plan, _addresses: Addresses, _task: TaskId) -> dict[str, str]:
    """Return no variables: there is one process."""
    return {}


def tf_config(plan: Plan, addresses: Addresses, task: TaskId) -> dict[str, str]:
    """Return TF_CONFIG; a sole task gets none.

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
    """Return ORCH_RANK and the like, also under the names that PyTorch made common.

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
    """Return the ranks, and HOROVOD_RANK and the like, as `horovodrun` sets them.

    Rank 0 is the first task, and its runtime runs Horovod's rendezvous server on its port: so the server lives as long
    as its generation. Beside it nothing is needed: gloo finds the peers there, and NCCL, where it is built in, by gloo.
    """
    places = addresses.once("places", lambda: slots(plan))
    return ranks(plan, addresses, task) | horovod_environment(plan, addresses, task, places)


CPU_OPERATIONS = "HOROVOD_CPU_OPERATIONS"


@dataclass(frozen=True, slots=True)
class Slot:
    """One rank's place. The fields are those of Horovod's SlotInfo."""

    hostname: str
    rank: int
    local_rank: int
    """Its number among the ranks of its host: the GPU that its script takes."""
    cross_rank: int
    """Its number among the ranks with the same local rank, one on each host."""
    size: int
    local_size: int
    cross_size: int


def slots(plan: Plan) -> dict[TaskId, Slot]:
    """Return the place of each task, in the order of the ranks."""
    tasks = sorted(plan.tasks, key=lambda task: task.id)
    by_host: dict[str, list[TaskId]] = {}
    for task in tasks:
        by_host.setdefault(task.host, []).append(task.id)
    by_task = {}
    for rank, task in enumerate(tasks):
        local_rank = by_host[task.host].index(task.id)
        across = [host for host, members in by_host.items() if len(members) > local_rank]
        by_task[task.id] = Slot(
            hostname=task.host,
            rank=rank,
            local_rank=local_rank,
            cross_rank=across.index(task.host),
            size=len(tasks),
            local_size=len(by_host[task.host]),
            cross_size=len(across),
        )
    return by_task


def horovod_environment(
    plan: Plan, addresses: Mapping[TaskId, str], task: TaskId, places: Mapping[TaskId, Slot]
) -> dict[str, str]:
    """HOROVOD_*, which Horovod reads when it begins, and ORCH_HOROVOD for the runtime, which does the rest before.

    Args:
        addresses: `host:port` of every task.
        places: what `slots` returns.
    """
    place = places[task]
    address, _, port = addresses[min(places)].rpartition(":")
    wish = {
        "alone": place.size == place.local_size,
        "slots": [asdict(each) for each in places.values()] if place.rank == 0 else [],
    }
    return {
        "HOROVOD_HOSTNAME": place.hostname,
        "HOROVOD_RANK": str(place.rank),
        "HOROVOD_SIZE": str(place.size),
        "HOROVOD_LOCAL_RANK": str(place.local_rank),
        "HOROVOD_LOCAL_SIZE": str(place.local_size),
        "HOROVOD_CROSS_RANK": str(place.cross_rank),
        "HOROVOD_CROSS_SIZE": str(place.cross_size),
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": address.strip("[]"),
        "HOROVOD_GLOO_RENDEZVOUS_PORT": port,
        "HOROVOD_CONTROLLER": "gloo",
        # A Horovod that was built with MPI too computes with MPI if the user says so.
        CPU_OPERATIONS: plan.env.get(CPU_OPERATIONS, "gloo"),
        "ORCH_HOROVOD": json.dumps(wish),
    }
