"""Makes orders from the core's decisions. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

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
from orchestrator.core.plan import SLOT, CheckpointPlan, Gpu, TaskId
from orchestrator.core.state.owner import Driven, Owner
from orchestrator.core.state.phase_states import Phase
from orchestrator.core.state.run import Run
from orchestrator.core.transitions import LEADS_TO
from orchestrator.protocol import reports
from orchestrator.protocol.orders import base, checkpoints, driving, hosts, tasks
from orchestrator.protocol.orders.base import Order
from orchestrator.protocol.orders.checkpoints import SEED, VERIFY
from orchestrator.protocol.orders.driving import RUNS, UNWATCH, WATCH
from orchestrator.protocol.orders.hosts import BLOB, PSUTIL
from orchestrator.protocol.orders.tasks import FAULT, RELEASE, START, STOP, SWEEP
from orchestrator.protocol.paths import RelativePath

if TYPE_CHECKING:
    from orchestrator.head.code.bundle import Archive

EVERY_GENERATION = 10**9

_PART_BYTES = 512 << 10

LOG_BYTES_MAX = 64 << 20
"""The size of the log of one task and generation on its host. The head copies it while it grows."""


def run_fields(run: Run) -> base.OfRun:
    """Return the fields of every order for a run."""
    return {"run": run.run_id, "epoch": run.epoch}


def _share(run: Run) -> base.Share | None:
    """Return the directory that the hosts share, and the run's token there; None where nothing is known of one."""
    checkpoint = run.plan.checkpoint
    if checkpoint is None or not checkpoint.shared or not run.share:
        return None
    return {"dir": checkpoint.dir, "token": run.share}


def claim(run: Run) -> driving.Claim | None:
    """Return the claim that names the run's owner, for its hosts; None for a run without an owner yet."""
    directory = run.plan.checkpoint.dir if run.plan.checkpoint is not None else None
    return _claim(run.owner, run.run_id, run.plan.name, directory) if run.owner is not None else None


def _claim(owner: Owner, run_id: str, name: str, directory: str | None) -> driving.Claim:
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
    claimed: driving.Claim | None = None,
    gpus: Sequence[Gpu] = (),
) -> Order[base.Nothing]:
    """Return the order to report a run with each heartbeat, and to lease these GPUs and slots."""
    slots = [int(name[len(SLOT) :]) for name in gpus if isinstance(name, str) and name.startswith(SLOT)]
    uuids = [name for name in gpus if isinstance(name, str) and not name.startswith(SLOT)]
    watched: driving.Watch = {
        "run": run_id,
        "epoch": epoch,
        "heartbeat_s": heartbeat_s,
        "claim": claimed,
        "gpus": [gpu for gpu in gpus if isinstance(gpu, int)] or None,
        "gpu_uuids": uuids or None,
    }
    if slots:
        watched["slots"] = slots
    return WATCH(watched)


def fence_off(driven: Driven, epoch: int) -> list[Order[Any]]:
    """Return the order by which a host obeys another owner's coordinator of the run no longer."""
    return [UNWATCH({"run": driven.run_id, "epoch": epoch})]


def end_anothers(driven: Driven, owner: Owner, epoch: int) -> list[Order[Any]]:
    """Return the orders that kill a run of another owner, and record that nobody drives it."""
    run_id, directory = driven.run_id, driven.checkpoint_dir
    claimed = _claim(owner, run_id, driven.name, directory)
    return [
        SWEEP({"run": run_id, "epoch": epoch, "generation_max": EVERY_GENERATION, "release": directory}),
        watch(run_id, epoch, 1.0, claimed),
        *fence_off(driven, epoch),
    ]


def start(run: Run, action: StartTask, secrets: Mapping[str, str]) -> Order[tasks.Started]:
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
            **run_fields(run),
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


def release(run: Run, action: ReleaseTask) -> Order[base.Nothing]:
    """Return the order for ReleaseTask."""
    placed = run.placed
    seed = run.seed if launch.has_scratch(placed, action.task) else None
    shared = run.plan.checkpoint is None or run.plan.checkpoint.shared
    # A standby was started before the restart that it is for.
    failure_s = saving.failure_s(run.trained_s, run.failures, len(run.assignees), run.rescued)
    seen = {"ORCH_RESTARTS": str(_restarts(run, action.task)), "ORCH_FAILURE_EVERY_S": f"{failure_s:.0f}"}
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
    step = (-1 if seed.global_step is None else seed.global_step) if seed is not None and shared else None
    return RELEASE(
        {
            **run_fields(run),
            "generation": action.generation,
            "task": str(action.task),
            "env": seen | launch.wiring(placed, action.addresses, action.task),
            "seed": (seed.path if shared else seed.copy or None) if seed is not None else None,
            "seed_step": step,
            "share": _share(run),
            "port": action.port,
        }
    )


def stop(run: Run, action: StopTask) -> Order[base.Nothing]:
    """Return the order for StopTask."""
    return STOP(
        {
            **run_fields(run),
            "generation": action.generation,
            "task": str(action.task),
            "grace_s": action.grace_s,
            "rescue": action.rescue,
            "compare": action.compare,
        }
    )


def seed(
    run: Run, action: SeedCheckpoint, checkpoint: CheckpointPlan, *, only: str | None = None
) -> Order[checkpoints.Seeded]:
    """Return the order for SeedCheckpoint. `only` is the digest of the only snapshot that may be used."""
    unrestorable: list[reports.Restored] = [
        {
            "file": RelativePath(each.file),
            "step": each.step,
            "saved_at": each.saved_time,
            "bytes": each.bytes,
            "why": each.why,
        }
        for each in run.unrestorable
    ]
    return SEED(
        {
            **run_fields(run),
            "generation": action.generation,
            "dir": checkpoint.dir,
            "keep": checkpoint.keep,
            "python": run.python(action.host),
            "from_scratch": run.from_scratch,
            "by": {"run": run.run_id, "host": action.host, "task": str(run.chief)},
            "claim": claim(run),
            "only": only,
            "step_max": run.step_max,
            "unrestorable": unrestorable or None,
            "group": checkpoint.group,
            "share": _share(run),
        }
    )


def verify(run: Run, action: VerifyCheckpoint, checkpoint: CheckpointPlan) -> Order[checkpoints.Verified]:
    """Return the order for VerifyCheckpoint."""
    return VERIFY(
        {
            **run_fields(run),
            "generation": action.generation,
            "dir": checkpoint.dir,
            "python": run.python(action.host),
            "share": _share(run),
            "step_max": gang.step_max(run),
        }
    )


def sweep(run: Run, action: SweepHost) -> Order[tasks.Swept]:
    """Return the order for SweepHost."""
    directory = run.plan.checkpoint.dir if run.plan.checkpoint is not None else None
    ends = run.phase.is_terminal or (run.intent is not None and LEADS_TO[run.intent] is not Phase.BACKOFF)
    return SWEEP(
        {**run_fields(run), "generation_max": action.generation, "release": directory, "ends": ends or None}
    )


def blob(run: Run, sha256: str, offset: int, *, last: bool, chunk: bool = False) -> Order[hosts.BlobState]:
    """Return the order that sends a part of a file, or with `chunk` of a snapshot's chunk."""
    store: Literal["checkpoints"] | None = "checkpoints" if chunk else None
    return BLOB({**run_fields(run), "sha256": sha256, "offset": offset, "last": last, "store": store})


def psutil(archive: Archive) -> Iterator[tuple[Order[base.Nothing], bytes]]:
    """Yield the orders that push psutil, each with its blob."""
    for start in range(0, len(archive.data), _PART_BYTES):
        part = archive.data[start : start + _PART_BYTES]
        last = start + len(part) == len(archive.data)
        yield PSUTIL({"sha256": archive.digest, "offset": start, "last": last}), part


def fault(run: Run, injected: Fault) -> Order[tasks.FaultBegun]:
    """Return the order that injects a fault into a task or its host."""
    kind = cast("base.FaultKind", injected.kind)  # `cut` is not sent: the head cuts its own connection
    task = str(injected.task) if injected.task is not None else None
    generation = injected.generation if task is not None else None
    return FAULT(
        {**run_fields(run), "fault": kind, "for_s": injected.for_s, "task": task, "generation": generation}
    )


def drivers(directory: str | None) -> Order[driving.KnownRuns]:
    """Return the order that asks which runs are driven on a host, and whose that checkpoint directory is."""
    return RUNS({"records": False, "brief": True, "dir": directory})
