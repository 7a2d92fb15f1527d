"""Makes orders from the core's decisions. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from orchestrator.core import gang, saving
from orchestrator.core.actions import (
    ReleaseTask,
    SeedCheckpoint,
    StartTask,
    StopTask,
    SweepHost,
    VerifyCheckpoint,
)
from orchestrator.core.faults import Fault
from orchestrator.core.launching import environment as launch
from orchestrator.core.plan import CheckpointPlan, TaskId
from orchestrator.core.state.owner import Driven, Owner
from orchestrator.core.state.phase_states import Phase
from orchestrator.core.state.run import Run
from orchestrator.core.state.task import Task
from orchestrator.core.transitions import LEADS_TO
from orchestrator.protocol import orders
from orchestrator.protocol.paths import RelativePath
from orchestrator.protocol.table import (
    BLOB,
    EXAMINE,
    FAULT,
    MACHINE,
    PROBE,
    PSUTIL,
    RELEASE,
    REMOVE,
    RUNS,
    SEED,
    STACKS,
    START,
    STOP,
    SWEEP,
    UNWATCH,
    VERIFY,
    WATCH,
    Order,
)

if TYPE_CHECKING:
    from orchestrator.head.code.bundle import Archive

EVERY_GENERATION = 10**9

_PART_BYTES = 512 << 10

LOG_BYTES_MAX = 64 << 20
"""The size of the log of one task and generation on its host. The head copies it while it grows."""


def of_run(run: Run) -> orders.OfRun:
    """Return the fields of every order for a run."""
    return {"run": run.run_id, "epoch": run.epoch}


def _share(run: Run) -> orders.Share | None:
    """Return the directory that the hosts share, and the run's token there; None where nothing is known of one."""
    checkpoint = run.plan.checkpoint
    if checkpoint is None or not checkpoint.shared or not run.share:
        return None
    return {"dir": checkpoint.dir, "token": run.share}


def claim(run: Run) -> orders.Claim | None:
    """Return the claim that names the run's owner, for its hosts; None for a run without an owner yet."""
    directory = run.plan.checkpoint.dir if run.plan.checkpoint is not None else None
    return _claim(run.owner, run.run_id, run.plan.name, directory) if run.owner is not None else None


def _claim(owner: Owner, run_id: str, name: str, directory: str | None) -> orders.Claim:
    return {
        "id": owner.id,
        "head": owner.head,
        "user": owner.user,
        "run": run_id,
        "name": name,
        "checkpoint_dir": directory,
    }


def watch(
    run_id: str,
    epoch: int,
    heartbeat_s: float,
    claimed: orders.Claim | None = None,
    gpus: Sequence[int] = (),
) -> Order[orders.Nothing]:
    """Return the order to report a run with each heartbeat, and to lease these GPUs."""
    fields: orders.Watch = {"run": run_id, "epoch": epoch, "heartbeat_s": heartbeat_s}
    if claimed is not None:
        fields["claim"] = claimed
    if gpus:
        fields["gpus"] = list(gpus)
    return WATCH(fields)


def unwatch(run_id: str, epoch: int) -> Order[orders.Nothing]:
    """Return the order that ends the watch of a run: then no coordinator drives it."""
    return UNWATCH({"run": run_id, "epoch": epoch})


def end_anothers(driven: Driven, owner: Owner, epoch: int) -> list[Order[Any]]:
    """Return the orders that fence off a run of another owner, kill it, and record that nobody drives it."""
    fields: orders.Sweep = {"run": driven.run_id, "epoch": epoch, "generation_max": EVERY_GENERATION}
    if driven.checkpoint_dir is not None:
        fields["release"] = driven.checkpoint_dir
    claimed = _claim(owner, driven.run_id, driven.name, driven.checkpoint_dir)
    return [SWEEP(fields), watch(driven.run_id, epoch, 1.0, claimed), unwatch(driven.run_id, epoch)]


def start(run: Run, action: StartTask, secrets: Mapping[str, str]) -> Order[orders.Started]:
    """Return the order for StartTask. It carries secrets, over SSH; they are not written to any disk."""
    plan = run.placed_with(action.task, action.host)
    task = plan.task(action.task)
    facts = run.host(task.host).facts
    ports = (
        [action.port] if action.port else launch.port_candidates(plan, run.run_id, action.generation, task.id)
    )
    gang = action.generation if action.standby else run.generation
    env = launch.environment(
        plan,
        run.run_id,
        action.generation,
        task.id,
        restarts=_restarts(run, task.id),
        checkpoint_dir=launch.checkpoint_dir(plan, gang, task.id),
        log_dir=None,
    )
    if action.standby:
        env["ORCH_STANDBY"] = "1"
    return START(
        {
            **of_run(run),
            "generation": action.generation,
            "task": str(task.id),
            "python": run.python(task.host),
            "script": plan.command[0],
            "args": list(plan.command[1:]),
            "env": env,
            "secrets": {name: secrets[name] for name in plan.secrets if name in secrets},
            "code": facts.code if facts else "",
            "ports": list(ports),
            "hold": plan.runtime,
            "log_max_bytes": LOG_BYTES_MAX,
            "scratch": launch.has_scratch(plan, task.id),
        }
    )


def _restarts(run: Run, task: TaskId) -> int:
    return run.budget.restarts + run.task(task).budget.restarts


def release(run: Run, action: ReleaseTask) -> Order[orders.Nothing]:
    """Return the order for ReleaseTask."""
    placed = run.placed
    seed = run.seed if launch.has_scratch(placed, action.task) else None
    shared = run.plan.checkpoint is None or run.plan.checkpoint.shared
    # A standby was started before the restart that it is for.
    failure_s = saving.failure_s(run.trained_s, run.failures, len(run.assignees), run.rescued)
    seen = {
        "ORCH_RESTARTS": str(_restarts(run, action.task)),
        "ORCH_FAILURE_EVERY_S": f"{failure_s:.0f}",
    }
    # An evaluator that is released alone joins the generation that trains, and reads its checkpoints.
    directory = launch.checkpoint_dir(placed, run.generation, action.task)
    if directory is not None:
        seen["ORCH_CHECKPOINT_DIR"] = directory
    if (
        run.plan.restart.rescue_s
        and shared
        and (of_chief := launch.checkpoint_dir(placed, run.generation, run.chief))
    ):
        seen["ORCH_RESCUE_DIR"] = of_chief
    fields: orders.Release = {
        "run": run.run_id,
        "epoch": run.epoch,
        "generation": action.generation,
        "task": str(action.task),
        "env": seen | launch.wiring(placed, action.addresses, action.task),
        "seed": (seed.path if shared else seed.copy or None) if seed is not None else None,
    }
    if seed is not None and shared:
        fields["seed_step"] = seed.global_step
    if (share := _share(run)) is not None:
        fields["share"] = share
    if action.port is not None:
        fields["port"] = action.port
    return RELEASE(fields)


def stop(run: Run, action: StopTask) -> Order[orders.Nothing]:
    """Return the order for StopTask."""
    return STOP(
        {
            **of_run(run),
            "generation": action.generation,
            "task": str(action.task),
            "grace_s": action.grace_s,
            "rescue": action.rescue,
            "compare": action.compare,
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
        "python": run.python(action.host),
        "from_scratch": run.from_scratch,
        "by": {"run": run.run_id, "host": action.host, "task": str(run.chief)},
    }
    claimed = claim(run)
    if claimed is not None:
        fields["claim"] = claimed
    if only is not None:
        fields["only"] = only
    if run.step_max is not None:
        fields["step_max"] = run.step_max
    if run.unrestorable:
        fields["unrestorable"] = [
            {
                "file": RelativePath(each.file),
                "step": each.step,
                "saved_at": each.saved_time,
                "bytes": each.bytes,
                "why": each.why,
            }
            for each in run.unrestorable
        ]
    if checkpoint.group is not None:
        fields["group"] = checkpoint.group
    if (share := _share(run)) is not None:
        fields["share"] = share
    return SEED(fields)


def verify(run: Run, action: VerifyCheckpoint, checkpoint: CheckpointPlan) -> Order[orders.Verified]:
    """Return the order for VerifyCheckpoint."""
    fields: orders.Verify = {
        "run": run.run_id,
        "epoch": run.epoch,
        "generation": action.generation,
        "dir": checkpoint.dir,
        "python": run.python(action.host),
    }
    if (share := _share(run)) is not None:
        fields["share"] = share
    if (step_max := gang.step_max(run)) is not None:
        fields["step_max"] = step_max
    return VERIFY(fields)


def sweep(run: Run, action: SweepHost) -> Order[orders.Swept]:
    """Return the order for SweepHost."""
    fields: orders.Sweep = {
        "run": run.run_id,
        "epoch": run.epoch,
        "generation_max": action.generation,
    }
    if run.plan.checkpoint is not None:
        fields["release"] = run.plan.checkpoint.dir
    if run.phase.is_terminal or (run.intent is not None and LEADS_TO[run.intent] is not Phase.BACKOFF):
        fields["ends"] = True
    return SWEEP(fields)


def stacks(run: Run, task: Task) -> Order[orders.StacksText]:
    """Return the order that asks for a task's stack."""
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


def psutil(archive: Archive) -> Iterator[tuple[Order[orders.Nothing], bytes]]:
    """Yield the orders that push psutil, each with its blob."""
    for start in range(0, len(archive.data), _PART_BYTES):
        part = archive.data[start : start + _PART_BYTES]
        last = start + len(part) == len(archive.data)
        yield PSUTIL({"sha256": archive.digest, "offset": start, "last": last}), part


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


def machine() -> Order[orders.Hardware]:
    """Return the order that asks for a host's hardware, and who uses it."""
    return MACHINE({})


def probe(fields: orders.Probe) -> Order[orders.Facts]:
    """Return the order that has a Python of the host report its packages, its GPUs and a checkpoint directory."""
    return PROBE(fields)


def examine(fields: orders.Examine) -> Order[orders.Health]:
    """Return the order that has a host listen on ports, and report its health."""
    return EXAMINE(fields)


def drivers(directory: str | None) -> Order[orders.KnownRuns]:
    """Return the order that asks which runs are driven on a host, and whose that checkpoint directory is."""
    fields: orders.Runs = {"records": False, "brief": True}
    if directory is not None:
        fields["dir"] = directory
    return RUNS(fields)


def remove(run_id: str, epoch: int, *, owner_id: str, even_alive: bool) -> Order[orders.Nothing]:
    """Return the order that removes a run from a host.

    Args:
        run_id: The run, which may belong to another head node.
        epoch: The epoch that was seen there. If a coordinator adopts the run meanwhile, its epoch is higher, and this
            order is refused.
        owner_id: The owner who asks.
        even_alive: Whether to remove it although it is alive or driven, and belongs to another owner.
    """
    return REMOVE({"run": run_id, "epoch": epoch, "owner": owner_id, "even_alive": even_alive})
