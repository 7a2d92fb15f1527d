"""Between frames and the core's values: what an agent says becomes events, what is decided becomes orders.

Pure functions. An agent may be older than this coordinator, so what it leaves out has a default; what cannot be
understood raises WireError, and the link is dropped with that sentence.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

from orchestrator.core import launch
from orchestrator.core.actions import (
    ReleaseTask,
    SeedCheckpoint,
    StartTask,
    StopTask,
    SweepHost,
    VerifyCheckpoint,
)
from orchestrator.core.causes import REPORTED, Cause
from orchestrator.core.events import CheckpointVerified, HostReported, TaskReport
from orchestrator.core.faults import Fault
from orchestrator.core.model import Exit, Problem, Progress, Run, Seed, Swept, Task
from orchestrator.core.plan import CheckpointPlan, TaskId

LOG_BYTES_MAX = 64 << 20
"""Of one task and generation, on its host. The head's copy is taken from it while it grows."""

TASK_PHASES = ("starting", "ready", "running", "exited", "unknown")


class WireError(ValueError):
    """An agent said something that is not in the contract."""


def slowness(hello: Mapping[str, Any]) -> str | None:
    """What the head found slow while it connected, as a sentence; None where nothing was."""
    slow = hello.get("slow") or {}
    said = []
    if "connect_s" in slow:
        said.append(f"sshd let us in after {slow['connect_s']:.0f} s")
    if "shell_s" in slow:
        said.append(f"the rc files of its login shell took {slow['shell_s']:.1f} s")
    return "; ".join(said) or None


def host_reported(host: str, run_id: str, report: Mapping[str, Any], *, at: float) -> HostReported:
    """One heartbeat, as far as it concerns one run."""
    try:
        tasks = tuple(task_report(raw, at=at) for raw in report["runs"].get(run_id, ()))
    except (AttributeError, KeyError, TypeError, ValueError) as e:
        raise WireError(f"the agent on {host} sent a report that cannot be read: {e!r}") from e
    facts = report.get("host") or {}
    directory = (facts.get("checkpoint_dirs") or {}).get(run_id) or {}
    return HostReported(
        at=at,
        host=host,
        tasks=tasks,
        cpu_percent=facts.get("cpu_percent"),
        memory_percent=facts.get("memory_percent"),
        dir_silent_s=directory.get("silent_s") or 0.0,
        dir_free_bytes=directory.get("free_bytes"),
    )


def task_report(raw: Mapping[str, Any], *, at: float) -> TaskReport:
    """One TASK of the contract."""
    ended = raw.get("exit")
    if raw["phase"] not in TASK_PHASES:
        raise ValueError(f"no phase of a task: {raw['phase']!r}")
    return TaskReport(
        task=TaskId.parse(raw["task"]),
        generation=int(raw["generation"]),
        phase=raw["phase"],
        pid=raw.get("pid"),
        port=raw.get("port"),
        progress=_progress(raw),
        exit=_exit(raw, ended, at=at) if ended is not None else None,
        said=tuple((str(said["kind"]), str(said["message"])) for said in raw.get("said") or ()),
    )


def _progress(raw: Mapping[str, Any]) -> Progress:
    # JSON has no word for NaN, yet 1e999 is read as infinity, which the journal could not give back.
    told = (raw.get("metrics") or {}).items()
    metrics = {str(name): float(value) for name, value in told if value is not None and isfinite(value)}
    return Progress(
        global_step=raw.get("global_step"),
        step_age_s=raw.get("step_age_s") or 0.0,
        epoch=raw.get("epoch"),
        metrics=metrics,
        steps_per_s=raw.get("steps_per_s"),
        cpu_percent=raw.get("cpu_percent"),
        rss_bytes=raw.get("rss_bytes"),
        log_bytes=raw.get("log_bytes") or 0,
        log_dropped_bytes=raw.get("log_dropped_bytes") or 0,
        heartbeat_age_s=raw.get("heartbeat_age_s") or 0.0,
        runtime_age_s=raw.get("runtime_age_s"),
    )


def _exit(raw: Mapping[str, Any], ended: Mapping[str, Any], *, at: float) -> Exit:
    """An end that we ordered is nobody's fault, whatever its code; but a chief that was done is done."""
    cause = REPORTED.get(ended["cause"], Cause.SCRIPT)
    if ended.get("ordered") and ended.get("code") != 0:
        cause = Cause.ORDERED
    error = raw.get("error")
    return Exit(
        cause=cause,
        code=ended.get("code"),
        signal=ended.get("signal"),
        ordered=bool(ended.get("ordered")),
        at=at - (ended.get("ago_s") or 0.0),
        ended_time=ended.get("ended_at"),
        error=error["message"] if error else None,
        last_lines=tuple(ended.get("last_lines") or ()),
        peak_rss_bytes=ended.get("peak_rss_bytes"),
        swept=ended.get("swept"),
        left=tuple(f"pid {left['pid']}: {left['why']}" for left in ended.get("left") or ()),
    )


def problem(error: Mapping[str, Any]) -> Problem:
    """An error reply."""
    return Problem(code=str(error["code"]), message=str(error["message"]), hint=error.get("hint"))


def swept(ok: Mapping[str, Any]) -> Swept:
    """The answer to `sweep`."""
    left = tuple(f"pid {left['pid']}: {left['why']}" for left in ok["left"])
    return Swept(left=left, ports_busy=tuple(ok["ports_busy"]), by=ok["by"])


def seeded(ok: Mapping[str, Any], generation: int, *, copy: str = "") -> Seed:
    """The answer to `seed`."""
    return Seed(
        generation=generation,
        global_step=ok["global_step"],
        source=ok["source"],
        path=ok["path"],
        rejected=rejected(ok),
        copy=copy,
    )


def verified(ok: Mapping[str, Any], generation: int, *, at: float, began_at: float) -> CheckpointVerified:
    """The answer to `verify`."""
    found = ok["checkpoint"] or {}
    return CheckpointVerified(
        at=at,
        generation=generation,
        global_step=found.get("global_step"),
        path=found.get("path", ""),
        saved_time=found.get("saved_at"),
        rejected=rejected(ok),
        took_s=at - began_at,
    )


def rejected(ok: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """(path, why) of the checkpoints that did not read whole."""
    return tuple((r["path"], r["why"]) for r in ok["rejected"])


def start_order(run: Run, action: StartTask, secrets: Mapping[str, str]) -> dict[str, Any]:
    """The order behind StartTask. Secrets travel in it, over SSH, and are put down nowhere."""
    plan = run.placed
    task = plan.task(action.task)
    host = plan.host(task.host)
    facts = run.host(task.host).facts
    directory = launch.checkpoint_dir(plan, run.generation, task.id)
    ports = (
        [action.port] if action.port else launch.port_candidates(plan, run.run_id, action.generation, task.id)
    )
    env = launch.environment(
        plan,
        run.run_id,
        action.generation,
        task.id,
        restarts=run.budget.restarts + run.task(task.id).budget.restarts,
        checkpoint_dir=directory,
        log_dir=None,
    )
    return {
        "order": "start",
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


def release_order(run: Run, action: ReleaseTask) -> dict[str, Any]:
    """The order behind ReleaseTask."""
    placed = run.placed
    seed = run.seed if launch.has_scratch(placed, action.task) else None
    shared = run.plan.checkpoint is None or run.plan.checkpoint.shared
    return {
        "order": "release",
        "generation": action.generation,
        "task": str(action.task),
        "env": launch.wiring(placed, action.addresses, action.task),
        "seed": (seed.path if shared else seed.copy or None) if seed is not None else None,
    }


def stop_order(action: StopTask) -> dict[str, Any]:
    """The order behind StopTask."""
    return {
        "order": "stop",
        "generation": action.generation,
        "task": str(action.task),
        "grace_s": action.grace_s,
    }


def seed_order(run: Run, action: SeedCheckpoint, checkpoint: CheckpointPlan) -> dict[str, Any]:
    """The order behind SeedCheckpoint."""
    return {
        "order": "seed",
        "generation": action.generation,
        "dir": checkpoint.dir,
        "keep": checkpoint.keep,
        "python": run.plan.host(action.host).python,
        "from_scratch": run.from_scratch,
        "by": {"run": run.run_id, "host": action.host, "task": str(run.chief)},
    }


def verify_order(run: Run, action: VerifyCheckpoint, checkpoint: CheckpointPlan) -> dict[str, Any]:
    """The order behind VerifyCheckpoint."""
    return {
        "order": "verify",
        "generation": action.generation,
        "dir": checkpoint.dir,
        "python": run.plan.host(action.host).python,
    }


def sweep_order(action: SweepHost) -> dict[str, Any]:
    """The order behind SweepHost."""
    return {"order": "sweep", "generation": action.generation, "generation_max": action.generation}


def stacks_order(run: Run, task: Task) -> dict[str, Any]:
    """Asks where a task is in its code; whole, with run and epoch."""
    return {
        "order": "stacks",
        "run": run.run_id,
        "epoch": run.epoch,
        "generation": task.generation,
        "task": str(task.id),
    }


def fault_order(run: Run, fault: Fault) -> dict[str, Any]:
    """Asks a host to hurt a task of the run; whole, with run and epoch."""
    return {
        "order": "fault",
        "run": run.run_id,
        "epoch": run.epoch,
        "fault": fault.kind,
        "task": str(fault.task),
        "generation": fault.generation,
        "for_s": fault.for_s,
    }
