"""The documents of `orch status --json` and `orch why --json`, as pure functions of runs."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType
from typing import Any, cast

from orchestrator.core import bottleneck
from orchestrator.core.causes import Blame, Cause
from orchestrator.core.concerns import CONCERNS
from orchestrator.core.diagnosis import cause, gpu_faults
from orchestrator.core.gang import gang
from orchestrator.core.hosts import checkpoint_dir, host_state
from orchestrator.core.launching.environment import endpoint
from orchestrator.core.phases.stopping import unproven
from orchestrator.core.plan import Plan, TaskId
from orchestrator.core.state.checkpoint import Checkpoint
from orchestrator.core.state.host import Host, HostState, Link
from orchestrator.core.state.phase_states import Phase, Running
from orchestrator.core.state.roster import Roster
from orchestrator.core.state.run import Run
from orchestrator.core.state.task import Task, TaskPhase
from orchestrator.core.words import proof_by
from orchestrator.head.coordinator.halts import Halt
from orchestrator.protocol import measures
from orchestrator.reporting import findings
from orchestrator.reporting.describe import Reason, reason
from orchestrator.reporting.fault_costs import fault_costs
from orchestrator.reporting.goodput import Account

SCHEMA = 1


Halts = Mapping[str, Halt]
"""The halted runs, by run id."""

_NONE: Halts = MappingProxyType({})

Times = Mapping[str, Account]
"""What the runs spent their time on, by run id."""

_NO_TIMES: Times = MappingProxyType({})


def document(
    runs: Iterable[Run], *, now: float, halted: Halts = _NONE, times: Times = _NO_TIMES
) -> dict[str, Any]:
    """Return the document of all runs, oldest first."""
    documents = [
        _of_one_that_waits(run, now, times.get(run.run_id))
        if run.is_unplaced and run.run_id not in halted
        else run_document(run, now=now, halted=halted, times=times)
        for run in runs
    ]
    return {"schema": SCHEMA, "runs": documents}


def run_document(run: Run, *, now: float, halted: Halts = _NONE, times: Times = _NO_TIMES) -> dict[str, Any]:
    """Return the document of a run. It has ages in seconds, since monotonic times mean nothing to others."""
    chief, ended, last = run.task(run.chief), run.first_cause, run.planned_end
    # The plan has a place where all is free; which one a run that waits gets is known at its turn only.
    placed = None if run.is_unplaced else run.placed
    halt = halted.get(run.run_id)
    return {
        **_headline(run, now, halted),
        "decisions_stopped": {
            "error": halt.error,
            "age_s": round(now - halt.since_at, 1),
            "story": list(halt.story),
        }
        if halt is not None
        else None,
        "phase_age_s": round(now - run.since_at, 1),
        "strategy": run.plan.strategy,
        "epoch": run.epoch,
        "steps_per_s": _pace(run, chief),
        "training_epoch": chief.progress.epoch,
        "training_epochs": chief.progress.epochs,
        **_times(run, chief, times.get(run.run_id)),
        "metrics": dict(chief.progress.metrics),
        "nonfinite": {
            name: {"global_step": step, "value": value}
            for name, (step, value) in chief.progress.nonfinite.items()
        },
        "checkpoint": _checkpoint(run, now),
        "fault_costs": fault_costs(run.plan, run.no_rescue, [task.progress.rehearsed for task in gang(run)]),
        "seed": {"global_step": run.seed.global_step, "source": run.seed.source} if run.seed else None,
        "saving": saving(run),
        **{key: part for concern in CONCERNS for key, part in concern.shows(run, now).items()},
        "first_cause": first_cause(run),
        # Why the last generation ended, if nothing failed: `rescheduled`, `host leaves`, `rolled back`.
        "planned_end": ended.cause.value if ended is not None and not ended.is_failure else None,
        # None if the run has no time limit.
        "time_left_s": round(max(0.0, last.at - now), 1) if last and not run.phase.is_terminal else None,
        "warnings": list(run.warnings),
        "placed_against": dict(run.against),
        "hints": [run.no_rescue] if run.no_rescue and not run.phase.is_terminal else [],
        "proof": _proof(run),
        "hosts": [_host(run, host, now) for host in run.hosts] if placed else [],
        "tasks": [_task(run, placed, task, now) for task in run.tasks],
    }


def _of_one_that_waits(run: Run, now: float, account: Account | None) -> dict[str, Any]:
    """Return the document of a run that waits. Ten thousand may, and only their times change: the rest is kept."""
    tasks = cast("Roster[TaskId, Task]", run.tasks)
    times = _times(run, run.task(run.chief), account)
    return {**tasks.once(_but_its_times, run), "phase_age_s": round(now - run.since_at, 1), **times}


def _but_its_times(_: Roster[TaskId, Task], run: Run) -> dict[str, Any]:
    return run_document(run, now=run.since_at)


def _headline(run: Run, now: float, halted: Halts) -> dict[str, Any]:
    """Return the keys that every document of a run has."""
    if run.run_id in halted:
        why = halted[run.run_id].sentence(run)
        headline = Reason(sentence=why, rest=why)
    else:
        headline = reason(run, now=now)
    return {
        "name": run.plan.name,
        "run_id": run.run_id,
        "phase": run.phase.value,
        "reason": headline.sentence,
        "reason_begins_with": headline.begins_with,
        "reason_rest": headline.rest,
        "generation": run.generation,
        "restarts": run.budget.restarts,
        "global_step": run.global_step,
        "has_stepped": run.task(run.chief).progress.has_stepped,
        "problem": _problem(run),
        "bottleneck": _bottleneck(run, now),
    }


def _bottleneck(run: Run, now: float) -> dict[str, Any] | None:
    """Return the run's current bottleneck; None if there is none, or if it is unknown."""
    running = run.phase_state
    limit = running.watched.told if isinstance(running, Running) else None
    if limit is None:
        return None
    return {
        "kind": limit.kind,
        "sentence": bottleneck.sentence(limit),
        "remedy": bottleneck.REMEDIES[limit.kind],
        "host": limit.host,
        "share": round(limit.share, 3),
        "age_s": round(now - limit.since_at, 1),
    }


def _pace(run: Run, chief: Task) -> float | None:
    """Return the chief's steps per second; None while its host is not heard: it may have stopped since."""
    is_heard = chief.phase.may_live and run.host(chief.host).link is Link.CONNECTED
    return chief.progress.measured.get("steps_per_s") if is_heard else None


def _times(run: Run, chief: Task, account: Account | None) -> dict[str, Any]:
    """Return the begin of the run, its total number of steps, and the time that the rest takes at its pace."""
    step, total, pace = run.global_step, chief.progress.steps_total, _pace(run, chief)
    eta_s = None
    if run.phase is Phase.RUNNING and step is not None and total is not None and pace:
        eta_s = round(max(0, total - step) / pace, 1)
    return {
        "started_at": round(account.begin, 3) if account else None,
        "ended_at": round(account.end, 3) if account and account.is_final else None,
        "elapsed_s": round(account.elapsed_s, 1) if account else None,
        "steps_total": total,
        "eta_s": eta_s,
        **_goodput(run, account),
    }


def _goodput(run: Run, account: Account | None) -> dict[str, Any]:
    """Return the run's goodput (0 to 1) and where its time went. Before its first step it has none."""
    data = account.as_data() if account else None
    if data is not None and not _has_stepped(run):
        data["value"] = None
    return {"goodput": data["value"] if data else None, "time_use": data}


def _has_stepped(run: Run) -> bool:
    """Return whether any generation has made a step, according to its reports."""
    given = (run.seed.global_step if run.seed else None) or 0
    went_on = run.longest_pause_s is not None or (run.best_step or 0) > given
    return went_on or any(task.progress.has_stepped for task in run.tasks)


def first_cause(run: Run) -> dict[str, object] | None:
    """Return what ended the last failed generation, and its cost in time once the run trains again.

    None if the end was planned: a drain, a host that leaves, a rollback.
    """
    if run.first_cause is None or not run.first_cause.is_failure:
        return None
    return cause.as_data(run.first_cause, run.cost.as_data() if run.cost and run.first_cause.cost else None)


def saving(run: Run) -> dict[str, Any] | None:
    """Return how often the chief saves, and why; None if its runtime does not decide that, or has not yet."""
    cadence = run.task(run.chief).progress.saving
    return {**asdict(cadence), "sentence": cadence.sentence()} if cadence is not None else None


def why_document(
    run: Run,
    ended: Sequence[dict[str, Any]],
    *,
    now: float,
    halted: Halts = _NONE,
    account: Account | None = None,
) -> dict[str, Any]:
    """Return the document of `orch why --json`: the state of the run, and the causes of its ends, oldest first.

    Args:
        run: the run.
        ended: the first causes in the events. If one occurs several times, the last one also has the reaction to it.
        now: the monotonic time.
    """
    newest = first_cause(run)
    failed = [c for c in (*ended, *([newest] if newest else ())) if c.get("cause") not in _PLANNED]
    latest = dict[tuple[Any, Any], dict[str, Any]]()
    for c in failed:
        key = c["generation"], c["task"]
        known = latest.get(key, {}).get("ended_time")
        latest[key] = {**c, "ended_time": known} if known and not c.get("ended_time") else c
    return {
        "schema": SCHEMA,
        **_headline(run, now, halted),
        **_goodput(run, account),
        "saving": saving(run),
        "first_causes": [{**c, "finding": findings.id_of(str(c.get("cause")))} for c in latest.values()],
    }


_PLANNED = frozenset(each.value for each in Cause if each.row.blame is Blame.NOBODY)


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
        "age_s": round(_age_s(known, now), 1),
    }


def _age_s(known: Checkpoint, now: float) -> float:
    """Return how long ago it was saved, by the host's clock and ours; since it was verified where that is not known."""
    if known.saved_time is None:
        return now - known.verified_at
    return max(0.0, time.time() - known.saved_time)


def _problem(run: Run) -> dict[str, Any] | None:
    problem = run.problem
    if problem is None:
        return None
    return {
        "code": problem.code,
        "finding": findings.id_of(problem.code),
        "message": problem.message,
        "hint": problem.hint,
        "exit_code": problem.exit_code,
        "key": problem.key,
        "table": [list(row) for row in problem.table],
    }


def _proof(run: Run) -> dict[str, Any] | None:
    if run.proof is None:
        return None
    hosts = {
        name: {
            "left": list(swept.left),
            "ports_busy": list(swept.ports_busy),
            "by": swept.by,
            "how": proof_by(swept.by),
        }
        for name, swept in run.proof.items()
    }
    gone = {host.name: host.state_why for host in run.hosts if host.gone and host.name not in run.proof}
    return {"hosts": hosts, "gone": gone, "unreachable": unproven(run)}


def _host(run: Run, host: Host, now: float) -> dict[str, Any]:
    tasks = [str(task.id) for task in run.tasks_on(host.name)]
    return {
        "host": host.name,
        "state": _state(host, holds=bool(tasks)),
        "reason": host.state_why or host.problem or checkpoint_dir.unmounted(run, host),
        "hint": host_state.STUCK_HINT if host.state is HostState.STUCK else None,
        "tasks": tasks,
        "link": host.link.value,
        "gone": host.gone or None,
        "leave_in_s": round(host.leave_at - now, 1) if host.leave_at is not None else None,
        "heard_age_s": round(now - host.heard_at, 1) if host.heard_at is not None else None,
        "problem": host.problem,
        "warning": host.warning,
        **measures.shown(measures.HOST, host.measured),
        "gpus": [
            {
                "index": load.index,
                "name": load.name,
                "uuid": host.gpu_uuid(load.index),
                **measures.shown(measures.GPU, load.measured),
            }
            for load in host.gpu_loads
        ],
        "gpu_faults": [
            {"index": fault.index, "xid": fault.xid, "sentence": gpu_faults.sentence(host.name, fault)}
            for fault in host.gpu_faults
        ],
        "checkpoint_dir_silent_s": host.dir_silent_s,
    }


def _state(host: Host, *, holds: bool) -> str:
    """Return `ready`, why the host is not ready, or `spare` for a host without tasks."""
    if host.state is not HostState.OPEN:
        return str(host.state.value)
    if host.link is not Link.CONNECTED:
        return str(host.link.value).lower()
    if host.facts is None:
        return "preparing"
    if host.dir_missing:
        return "unmounted"
    return "ready" if holds else "spare"


def _task(run: Run, placed: Plan | None, task: Task, now: float) -> dict[str, Any]:
    host = run.host(task.host)
    phase = "UNREACHABLE" if host.link is Link.UNREACHABLE and task.phase.may_live else task.phase.value
    heard = task.progress.heartbeat_age_s + now - task.heard_at if task.heard_at is not None else None
    planned = run.plan.host(task.host)
    # What its process does, in a word; None if unknown.
    stage = task.progress.stage if phase == TaskPhase.RUNNING.value else None
    if phase == TaskPhase.STARTING.value and task.pid is not None:
        stage = "importing"
    return {
        "task": str(task.id),
        "host": task.host if placed else None,
        "phase": phase,
        "pid": task.pid,
        "generation": task.generation,
        "stage": stage,
        "unreached": [{"task": str(peer), "finding": finding} for peer, finding in task.progress.unreached],
        "address": endpoint(planned.peer_address, task.port) if task.port else None,
        "gpus": list(placed.task(task.id).gpus) if placed else [],
        "restarts": task.budget.restarts,
        "global_step": task.progress.global_step,
        **measures.shown(measures.TASK, task.progress.measured),
        "exit_code": task.exit.code if task.exit else None,
        "signal": task.exit.signal if task.exit else None,
        "cause": task.exit.cause.value if task.exit else None,
        "ended_time": task.exit.ended_time if task.exit else None,
        "heartbeat_age_s": round(heard, 1) if heard is not None and task.phase.may_live else None,
    }
