"""Make orders from what the core decides. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from orchestrator.core import launch
from orchestrator.core.actions import (
    ReleaseTask,
    SeedCheckpoint,
    StartTask,
    StopTask,
    SweepHost,
    VerifyCheckpoint,
)
from orchestrator.core.faults import Fault
from orchestrator.core.model import Run, Task
from orchestrator.core.plan import CheckpointPlan
from orchestrator.protocol import orders
from orchestrator.protocol.table import (
    BLOB,
    FAULT,
    RELEASE,
    REMOVE,
    RUNS,
    SEED,
    STACKS,
    START,
    STOP,
    SWEEP,
    VERIFY,
    Order,
)

LOG_BYTES_MAX = 64 << 20
"""Of one task and generation, on its host. The head's copy is taken from it while it grows."""


def of_run(run: Run) -> orders.OfRun:
    """Return the fields of every order for a run."""
    return {"run": run.run_id, "epoch": run.epoch}


def start(run: Run, action: StartTask, secrets: Mapping[str, str]) -> Order[orders.Started]:
    """Return the order for StartTask. It carries secrets, over SSH; they are not written to any disk."""
    plan = run.placed
    task = plan.task(action.task)
    host = plan.host(task.host)
    facts = run.host(task.host).facts
    ports = (
        [action.port] if action.port else launch.port_candidates(plan, run.run_id, action.generation, task.id)
    )
    env = launch.environment(
        plan,
        run.run_id,
        action.generation,
        task.id,
        restarts=run.budget.restarts + run.task(task.id).budget.restarts,
        checkpoint_dir=launch.checkpoint_dir(plan, run.generation, task.id),
        log_dir=None,
    )
    return START(
        {
            **of_run(run),
            "generation": action.generation,
            "task": str(task.id),
            "python": host.python,
            "script": plan.script,
            "args": list(plan.args),
            "env": env,
            "secrets": {name: secrets[name] for name in plan.secrets if name in secrets},
            "code": facts.code if facts else "",
            "ports": list(ports),
            "hold": plan.runtime,
            "log_max_bytes": LOG_BYTES_MAX,
            "scratch": launch.has_scratch(plan, task.id),
        }
    )


def release(run: Run, action: ReleaseTask) -> Order[orders.Nothing]:
    """Return the order for ReleaseTask."""
    placed = run.placed
    seed = run.seed if launch.has_scratch(placed, action.task) else None
    shared = run.plan.checkpoint is None or run.plan.checkpoint.shared
    return RELEASE(
        {
            **of_run(run),
            "generation": action.generation,
            "task": str(action.task),
            "env": launch.wiring(placed, action.addresses, action.task),
            "seed": (seed.path if shared else seed.copy or None) if seed is not None else None,
        }
    )


def stop(run: Run, action: StopTask) -> Order[orders.Nothing]:
    """Return the order for StopTask."""
    return STOP(
        {
            **of_run(run),
            "generation": action.generation,
            "task": str(action.task),
            "grace_s": action.grace_s,
        }
    )


def seed(
    run: Run, action: SeedCheckpoint, checkpoint: CheckpointPlan, *, only: str | None = None
) -> Order[orders.Seeded]:
    """Return the order for SeedCheckpoint. `only` is the digest of the only snapshot that may be used."""
    fields: orders.Seed = {
        "run": run.run_id,
        "epoch": run.epoch,
        "generation": action.generation,
        "dir": checkpoint.dir,
        "keep": checkpoint.keep,
        "python": run.plan.host(action.host).python,
        "from_scratch": run.from_scratch,
        "by": {"run": run.run_id, "host": action.host, "task": str(run.chief)},
    }
    if only is not None:
        fields["only"] = only
    return SEED(fields)


def verify(run: Run, action: VerifyCheckpoint, checkpoint: CheckpointPlan) -> Order[orders.Verified]:
    """Return the order for VerifyCheckpoint."""
    return VERIFY(
        {
            **of_run(run),
            "generation": action.generation,
            "dir": checkpoint.dir,
            "python": run.plan.host(action.host).python,
        }
    )


def sweep(run: Run, action: SweepHost) -> Order[orders.Swept]:
    """Return the order for SweepHost."""
    return SWEEP({**of_run(run), "generation_max": action.generation})


def stacks(run: Run, task: Task) -> Order[orders.StacksText]:
    """Return the order that asks where a task is in its code."""
    return STACKS({**of_run(run), "generation": task.generation, "task": str(task.id)})


def blob(run: Run, sha256: str, offset: int, *, last: bool, chunk: bool = False) -> Order[orders.BlobState]:
    """Return the order that sends a part of a file, or with `chunk` of a snapshot's chunk."""
    fields: orders.Blob = {
        "run": run.run_id,
        "epoch": run.epoch,
        "sha256": sha256,
        "offset": offset,
        "last": last,
    }
    if chunk:
        fields["store"] = "checkpoints"
    return BLOB(fields)


def fault(run: Run, injected: Fault) -> Order[orders.FaultBegun]:
    """Return the order that injects a fault into a task or its host."""
    kind = cast("orders.FaultKind", injected.kind)  # `cut` is not sent: the head cuts its own connection
    fields: orders.Fault = {
        "run": run.run_id,
        "epoch": run.epoch,
        "fault": kind,
        "for_s": injected.for_s,
    }
    if injected.task is not None:
        fields["task"] = str(injected.task)
        fields["generation"] = injected.generation
    return FAULT(fields)


def runs(*, records: bool) -> Order[orders.KnownRuns]:
    """Return the order that lists the runs of a host, with their records or without."""
    return RUNS({"records": records})


def remove(run_id: str, epoch: int, *, even_driven: bool) -> Order[orders.Nothing]:
    """Return the order that removes a run from a host.

    Args:
        run_id: The run, which may belong to another head node.
        epoch: The epoch that was seen there. If a coordinator adopts the run meanwhile, its epoch is higher, and this
            order is refused.
        even_driven: Whether to remove it although an agent watches it.
    """
    return REMOVE({"run": run_id, "epoch": epoch, "even_driven": even_driven})
