"""What Horovod's ranks are told of each other: what `horovodrun` would tell them, as a pure function of the plan.

Rank 0 is the first task, and its runtime runs Horovod's rendezvous server on its port: so the server lives as long
as its generation. Beside it nothing is needed: gloo finds the peers there, and NCCL, where it is built in, by gloo.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from orchestrator.core.plan import Plan, TaskId

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
    found = {}
    for rank, task in enumerate(tasks):
        local_rank = by_host[task.host].index(task.id)
        across = [host for host, members in by_host.items() if len(members) > local_rank]
        found[task.id] = Slot(
            hostname=task.host,
            rank=rank,
            local_rank=local_rank,
            cross_rank=across.index(task.host),
            size=len(tasks),
            local_size=len(by_host[task.host]),
            cross_size=len(across),
        )
    return found


def environment(
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
