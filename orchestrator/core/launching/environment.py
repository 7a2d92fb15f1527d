"""What a task is started with: TF_CONFIG, ports, environment. Pure functions of the plan.

For a run that has moved tasks, pass the plan as it is placed now (`Run.placed`).
"""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any

from orchestrator.core.launching.placement import COMPUTING_TYPES
from orchestrator.core.launching.wiring import Addresses
from orchestrator.core.plan import CheckpointPlan, Gpu, Options, Plan, TaskId, TaskPlan
from orchestrator.core.strategy import STRATEGIES, Strategy

PORT_CANDIDATES_MAX = 16
"""How many ports a task may try. More than a few are never taken by strangers at once."""


GENERATION_REPORTED_MAX = 10**8
"""The highest generation that a host is believed to have of somebody else's. One above the wire's limit would make
every later report of every host unreadable, so a host could end the run, and all that follow in its directory."""

TPU_WAIT_SHARE = 0.4
"""Of the start deadline: a run is given up when it fails twice alike, and both times fit into the deadline."""


def endpoint(data_address: str, port: int) -> str:
    """`address:port` as TF_CONFIG wants it; an IPv6 address goes into brackets.

    >>> endpoint("fd00::7", 20000)
    '[fd00::7]:20000'
    """
    bare = data_address.strip("[]")
    return f"[{bare}]:{port}" if ":" in bare else f"{bare}:{port}"


def wiring(plan: Plan, addresses: Mapping[TaskId, str], task: TaskId) -> dict[str, str]:
    """Return the environment that names a task's peers. It is known only when all tasks have joined.

    Args:
        addresses: `host:port` of every task. `Addresses` makes what is the same for all tasks only once.
    """
    shared = addresses if isinstance(addresses, Addresses) else Addresses(addresses)
    return STRATEGIES[plan.strategy].wiring(plan, shared, task)


def runtime_options(plan: Plan) -> str:
    """Return ORCH_RUNTIME, the runtime's options as JSON; an option that is missing has its default."""
    # The planned number of replicas is left out: the task gets it in an environment variable.
    defaults = asdict(replace(Options(), replicas_planned=plan.options.replicas_planned))
    chosen = {name: value for name, value in asdict(plan.options).items() if value != defaults[name]}
    if plan.options.tpu is not None:  # TensorFlow would silently wait for many minutes for a TPU
        chosen["tpu_wait_s"] = TPU_WAIT_SHARE * plan.timing.start_after_s
    return json.dumps(
        strategy_options(STRATEGIES[plan.strategy]) | chosen | _saving(plan.checkpoint) | _rescue(plan)
    )


def _saving(checkpoint: CheckpointPlan | None) -> dict[str, float]:
    """Return how often to save, where the spec says it. Otherwise the runtime computes it."""
    if checkpoint is None:
        return {}
    intervals = {"save_every_steps": checkpoint.every_steps, "save_every_s": checkpoint.every_s}
    return {name: value for name, value in intervals.items() if value is not None}


def _rescue(plan: Plan) -> dict[str, bool]:
    """Return whether a task prepares to hand over its state before it is stopped."""
    wanted = plan.restart.rescue_s and plan.checkpoint is not None
    return {"rescue": True} if wanted and STRATEGIES[plan.strategy].rescues else {}


def strategy_options(row: Strategy) -> dict[str, Any]:
    """Return the part of ORCH_RUNTIME that is the same in all runs of a strategy."""
    options = {"module": row.runtime_module, "tf_class": row.tf_class, "served": sorted(row.served)}
    given = {name: value for name, value in options.items() if value}
    lists = {"frameworks": list(row.frameworks), "packages": list(row.packages)}
    return {"strategy": row.name, **lists, **given}


def ports_needed(plan: Plan) -> int:
    """Return how many ports the range must have: two for each task of the fullest machine.

    A generation never uses a port of the one before it, so that a stale process cannot join a new gang.
    """
    machines = _machines(plan)
    return 2 * max(Counter(machines[task.host] for task in plan.tasks).values(), default=0)


def port_candidates(plan: Plan, run_id: str, generation: int, task: TaskId) -> tuple[int, ...]:
    """Return the ports that this task may take, the preferred one first.

    The range is cut into blocks of equal width, and a generation takes as many blocks as its machine has
    slots, each time the next ones: tasks may move between generations, slots do not. As there are twice as many
    blocks, or more, no port is offered to two tasks of a machine, nor to two generations in a row. Where a run
    begins depends on its id, so that two runs that share a range seldom meet.

    Raises:
        ValueError: the range has fewer than `ports_needed(plan)` ports.
    """
    first, last = plan.ports
    size = last - first + 1
    machines = _machines(plan)
    machine = machines[plan.task(task).host]
    neighbours = sorted(other.id for other in plan.tasks if machines[other.host] == machine)
    slots = sum(host.slots for host in plan.hosts if machines[host.name] == machine)
    most, width, blocks = _blocks(size, len(neighbours), slots)
    if width < 1:
        raise ValueError(f"ports {first}-{last}: {len(neighbours)} tasks need {2 * len(neighbours)}")
    turn = zlib.crc32(run_id.encode()) + generation * most + neighbours.index(task)
    start = first + (turn % blocks) * width
    return tuple(range(start, start + width))


def _blocks(size: int, tasks: int, slots: int) -> tuple[int, int, int]:
    """Return how many blocks a generation takes on a machine, how wide they are, and how many there are."""
    most = max(tasks, min(slots, size // 2))
    width = min(PORT_CANDIDATES_MAX, size // (2 * most))
    return most, width, size // max(width, 1)


def ports_in_block(plan: Plan, host: str, tasks: int) -> int:
    """Return how many ports a task may try on a host that has so many tasks.

    So many standby tasks can wait on one host: tasks of different slots try the same ports.
    """
    first, last = plan.ports
    machines = _machines(plan)
    slots = sum(other.slots for other in plan.hosts if machines[other.name] == machines[host])
    return _blocks(last - first + 1, max(tasks, 1), slots)[1]


def have_ports_apart(plan: Plan, generation: int, other: int) -> bool:
    """Return whether two generations take different ports on every machine.

    Two in a row always do. Others need not: once all blocks were used, the first ones are used again.

    >>> from orchestrator.core.plan import HostPlan, TaskPlan
    >>> task = TaskPlan(TaskId("worker", 0), "a")
    >>> plan = Plan("t", "single", (HostPlan("a"),), (task,), "train.py", ports=(20000, 20001))
    >>> [have_ports_apart(plan, 1, other) for other in (2, 3, 4)]
    [True, False, True]
    """
    first, last = plan.ports
    machines = _machines(plan)
    tasks = Counter(machines[task.host] for task in plan.tasks)
    slots: Counter[str] = Counter()
    for host in plan.hosts:
        slots[machines[host.name]] += host.slots
    for machine, count in tasks.items():
        most, _, blocks = _blocks(last - first + 1, count, slots[machine])
        if not most <= (other - generation) * most % blocks <= blocks - most:
            return False
    return True


def replicas(tasks: Iterable[TaskPlan], on_cpu: int | None) -> int:
    """Return how many replicas train in these tasks: their GPUs, or the logical CPUs of those without.

    >>> tasks = [TaskPlan(TaskId("worker", 0), "a", gpus=(0, 1)), TaskPlan(TaskId("evaluator", 0), "a")]
    >>> replicas(tasks, None), replicas([TaskPlan(TaskId("worker", 0), "a")], 2)
    (2, 2)
    """
    return sum(len(task.gpus) or on_cpu or 1 for task in tasks if task.id.type in COMPUTING_TYPES)


def _machines(plan: Plan) -> dict[str, str]:
    """Return the key of each host's machine: two hosts of a spec may be one machine, and share its ports."""
    return {host.name: host.peer_address for host in plan.hosts}


def environment(
    plan: Plan,
    run_id: str,
    generation: int,
    task: TaskId,
    restarts: int,
    checkpoint_dir: str | None,
    log_dir: str | None = None,
) -> dict[str, str]:
    """Return the environment of one task, without TF_CONFIG (which waits for the ports) and without secrets.

    orch's variables win over the user's. CUDA_VISIBLE_DEVICES is always set: without it TensorFlow takes every GPU.
    """
    placed = plan.task(task)
    ours = {
        # By default CUDA numbers the fastest GPU first; the numbers in the spec are those of nvidia-smi.
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(str(gpu) for gpu in _visible_gpus(plan, placed)),
        "ORCH_RUN": run_id,
        "ORCH_TASK": str(task),
        "ORCH_HOST": placed.host,
        "ORCH_GENERATION": str(generation),
        "ORCH_RESTARTS": str(restarts),
        "ORCH_RUNTIME": runtime_options(plan),
        **_replica_variables(plan),
    }
    if plan.options.keras == 2:
        ours["TF_USE_LEGACY_KERAS"] = "1"
    if plan.options.tpu is not None:
        ours["TPU_NAME"] = plan.options.tpu
    if log_dir is not None:  # otherwise the agent chooses it, on the host
        ours["ORCH_LOG_DIR"] = log_dir
    if checkpoint_dir is not None:
        ours["ORCH_CHECKPOINT_DIR"] = checkpoint_dir
    if len(plan.hosts) > 1:
        # Otherwise gRPC sends the tasks' traffic to a proxy that the login files name. The shim adds the host's own.
        peers = dict.fromkeys(host.peer_address.strip("[]") for host in plan.hosts)
        ours["no_grpc_proxy"] = plan.env.get("no_grpc_proxy", ",".join(peers))
    # Python draws a seed for each process: the order of a set of strings would differ by worker, and after a restart.
    return {"PYTHONHASHSEED": "0", **STRATEGIES[plan.strategy].env, **plan.env, **ours}


def _replica_variables(plan: Plan) -> dict[str, str]:
    """Return the variables that tell a script its number of replicas, where there may be fewer than planned."""
    planned = plan.options.replicas_planned
    if planned is None:
        return {}
    return {
        "ORCH_REPLICAS": str(replicas(plan.tasks, plan.options.replicas_on_cpu)),
        "ORCH_REPLICAS_PLANNED": str(planned),
        "ORCH_ON_SHRINK": plan.options.on_shrink,
    }


def _visible_gpus(plan: Plan, task: TaskPlan) -> tuple[Gpu, ...]:
    """Return a task's own GPUs; all of the run's on its host, by local rank, where the script picks by local rank."""
    row = STRATEGIES[plan.strategy]
    if task.id.type in row.without_gpus:
        return ()
    if not row.gpu_by_local_rank:
        return task.gpus
    neighbours = sorted(
        (other for other in plan.tasks if other.host == task.host), key=lambda other: other.id
    )
    return tuple(gpu for other in neighbours for gpu in other.gpus)


def checkpoint_dir(plan: Plan, generation: int, task: TaskId) -> str | None:
    """Return the generation's directory for the run's chief; None for other tasks, which get a scratch directory.

    The evaluator gets the chief's: it evaluates what the chief saves, and saves nothing.
    """
    if plan.checkpoint is None or (task != plan.chief and task.type != "evaluator"):
        return None
    return f"{plan.checkpoint.dir.rstrip('/')}/gen-{generation:06d}"


def has_scratch(plan: Plan, task: TaskId) -> bool:
    """Return whether a task saves into a scratch copy that is thrown away: all who train beside the chief do."""
    served = STRATEGIES[plan.strategy].served
    return plan.checkpoint is not None and task.type not in served and checkpoint_dir(plan, 0, task) is None


def hosts_with_scratch(plan: Plan) -> list[str]:
    """Return the hosts of tasks that start from a scratch copy of the checkpoint."""
    return list(dict.fromkeys(task.host for task in plan.tasks if has_scratch(plan, task.id)))
