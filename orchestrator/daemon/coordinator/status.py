"""The documents of `orch status --json` and `orch why --json`, as pure functions of runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from orchestrator.core.diagnosis import cause
from orchestrator.core.diagnosis.describe import Reason, reason
from orchestrator.core.launch import endpoint
from orchestrator.core.model import Host, HostState, Link, Run, Task
from orchestrator.core.phases.stopping import unproven
from orchestrator.core.plan import Plan
from orchestrator.daemon.coordinator.halts import Halt

SCHEMA = 1


Halts = Mapping[str, Halt]
"""By id, those of the runs about which nothing is decided any more."""

_NONE: Halts = MappingProxyType({})


def document(runs: Iterable[Run], *, now: float, halted: Halts = _NONE) -> dict[str, Any]:
    """Return the document of all runs, oldest first."""
    return {"schema": SCHEMA, "runs": [run_document(run, now=now, halted=halted) for run in runs]}


def run_document(run: Run, *, now: float, halted: Halts = _NONE) -> dict[str, Any]:
    """Return the document of one run. It holds ages in seconds, since monotonic times mean nothing to others."""
    chief, placed = run.task(run.chief), run.placed
    told = _reason(run, now, halted)
    return {
        "name": run.plan.name,
        "run_id": run.run_id,
        "phase": run.phase.value,
        "reason": told.sentence,
        "reason_begins_with": told.begins_with,
        "reason_rest": told.rest,
        "decisions_stopped": _stopped(run, now, halted),
        "phase_age_s": round(now - run.since_at, 1),
        "strategy": run.plan.strategy,
        "generation": run.generation,
        "epoch": run.epoch,
        "restarts": run.budget.restarts,
        "global_step": run.global_step,
        "steps_per_s": chief.progress.steps_per_s if chief.phase.may_live else None,
        "training_epoch": chief.progress.epoch,
        "metrics": dict(chief.progress.metrics),
        "checkpoint": _checkpoint(run, now),
        "seed": {"global_step": run.seed.global_step, "source": run.seed.source} if run.seed else None,
        "problem": _problem(run),
        "first_cause": first_cause(run),
        "warnings": list(run.warnings),
        "proof": _proof(run),
        "hosts": [_host(run, host, now) for host in run.hosts],
        "tasks": [_task(run, placed, task, now) for task in run.tasks],
    }


def first_cause(run: Run) -> dict[str, object] | None:
    """Return what ended the last generation that failed."""
    return cause.as_data(run.first_cause) if run.first_cause else None


def _reason(run: Run, now: float, halted: Halts) -> Reason:
    if run.run_id not in halted:
        return reason(run, now=now)
    told = halted[run.run_id].sentence(run)
    return Reason(sentence=told, rest=told)


def _stopped(run: Run, now: float, halted: Halts) -> dict[str, Any] | None:
    halt = halted.get(run.run_id)
    if halt is None:
        return None
    return {"error": halt.error, "age_s": round(now - halt.since_at, 1), "story": list(halt.story)}


def why_document(
    run: Run, ended: Sequence[dict[str, Any]], *, now: float, halted: Halts = _NONE
) -> dict[str, Any]:
    """Return the document of `orch why --json`: the state of the run, and what ended its generations, oldest first.

    Args:
        run: the run.
        ended: the first causes in the events. One cause may occur several times; the last one also says what was done.
        now: the monotonic time.
    """
    newest, told = first_cause(run), _reason(run, now, halted)
    latest = {(c["generation"], c["task"]): c for c in (*ended, *([newest] if newest else ()))}
    return {
        "schema": SCHEMA,
        "name": run.plan.name,
        "run_id": run.run_id,
        "phase": run.phase.value,
        "reason": told.sentence,
        "reason_begins_with": told.begins_with,
        "reason_rest": told.rest,
        "generation": run.generation,
        "restarts": run.budget.restarts,
        "global_step": run.global_step,
        "problem": _problem(run),
        "first_causes": list(latest.values()),
    }


def _checkpoint(run: Run, now: float) -> dict[str, Any] | None:
    known = run.checkpoint
    if known is None:
        return None
    return {
        "global_step": known.global_step,
        "path": known.path,
        "verified": known.verified and not known.removed,
        "removed": known.removed,
        "generation": known.generation,
        "age_s": round(now - known.verified_at, 1),
    }


def _problem(run: Run) -> dict[str, Any] | None:
    problem = run.problem
    if problem is None:
        return None
    return {
        "code": problem.code,
        "message": problem.message,
        "hint": problem.hint,
        "exit_code": problem.exit_code,
        "key": problem.key,
    }


def _proof(run: Run) -> dict[str, Any] | None:
    if run.proof is None:
        return None
    hosts = {
        name: {"left": list(swept.left), "ports_busy": list(swept.ports_busy), "by": swept.by}
        for name, swept in run.proof.items()
    }
    return {"hosts": hosts, "unreachable": unproven(run)}


def _host(run: Run, host: Host, now: float) -> dict[str, Any]:
    tasks = [str(task.id) for task in run.tasks if task.host == host.name]
    return {
        "host": host.name,
        "state": _state(host, holds=bool(tasks)),
        "reason": host.state_why or host.problem,
        "tasks": tasks,
        "link": host.link.value,
        "heard_age_s": round(now - host.heard_at, 1) if host.heard_at is not None else None,
        "problem": host.problem,
        "warning": host.warning,
        "cpu_percent": host.cpu_percent,
        "memory_percent": host.memory_percent,
        "checkpoint_dir_silent_s": host.dir_silent_s,
    }


def _state(host: Host, *, holds: bool) -> str:
    """Return `ready`, or what keeps the host from being ready, or `spare` for one without tasks."""
    if host.state is not HostState.OPEN:
        return str(host.state.value)
    if host.link is not Link.CONNECTED:
        return str(host.link.value).lower()
    if host.facts is None:
        return "preparing"
    return "ready" if holds else "spare"


def _task(run: Run, placed: Plan, task: Task, now: float) -> dict[str, Any]:
    host = run.host(task.host)
    phase = "UNREACHABLE" if host.link is Link.UNREACHABLE and task.phase.may_live else task.phase.value
    heard = task.progress.heartbeat_age_s + now - task.heard_at if task.heard_at is not None else None
    planned = run.plan.host(task.host)
    return {
        "task": str(task.id),
        "host": task.host,
        "phase": phase,
        "pid": task.pid,
        "generation": task.generation,
        "address": endpoint(planned.data_address, task.port) if task.port else None,
        "gpus": list(placed.task(task.id).gpus),
        "restarts": task.budget.restarts,
        "global_step": task.progress.global_step,
        "steps_per_s": task.progress.steps_per_s,
        "cpu_percent": task.progress.cpu_percent,
        "rss_bytes": task.progress.rss_bytes,
        "exit_code": task.exit.code if task.exit else None,
        "signal": task.exit.signal if task.exit else None,
        "cause": task.exit.cause.value if task.exit else None,
        "ended_time": task.exit.ended_time if task.exit else None,
        "log_bytes": task.progress.log_bytes,
        "log_dropped_bytes": task.progress.log_dropped_bytes,
        "heartbeat_age_s": round(heard, 1) if heard is not None and task.phase.may_live else None,
    }
