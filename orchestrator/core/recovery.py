"""A run rebuilt from what its hosts know, when the journal is lost.

A record is the run as its coordinator saw it when the generation was started, or released: plan, budget, checkpoint,
what the hosts are. What has changed since, the tasks' reports tell: who lives, where, on which port, in which
generation. The rebuilt run is adopted as any run of a journal is; what its tasks have become meanwhile is learned then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from orchestrator.core.events import TaskReport
from orchestrator.core.group import rebased
from orchestrator.core.model import Host, Link, Phase, Run, Task, TaskPhase
from orchestrator.core.running import next_verification


def newest(records: Iterable[tuple[int, Run]]) -> Run | None:
    """Of the records that hosts hold of one run, the one that knows most. Each with the epoch that wrote it."""
    ranked = [
        (epoch, run.generation_last, run.phase is Phase.RUNNING, number, run)
        for number, (epoch, run) in enumerate(records)
    ]
    return max(ranked, key=lambda entry: entry[:4])[4] if ranked else None


def unaccounted(record: Run, told: Mapping[str, Iterable[TaskReport]]) -> list[str]:
    """Hosts that said nothing and have tasks of the run of which the record does not even know the process."""
    return sorted({task.host for task in record.tasks if task.host not in told and task.pid is None})


def rebuilt(record: Run, told: Mapping[str, Iterable[TaskReport]], *, at: float, written_at: float) -> Run:
    """The run in the phase that its tasks show. `told`: what each host that answered reports.

    Args:
        at: now; `written_at`: when the record was written, by the clock of its writer. Waits go on from there.
    """
    run = rebased(record, at - written_at)
    current = {
        (host, report.task): report
        for host, reports in told.items()
        for report in sorted(reports, key=lambda report: report.generation)
    }
    tasks = tuple(_task(task, current.get((task.host, task.id))) for task in run.tasks)
    gang = max(run.generation, min(task.generation for task in tasks))
    released = run.phase is Phase.RUNNING or any(task.phase is TaskPhase.RUNNING for task in tasks)
    if released:
        tasks = tuple(
            replace(task, phase=TaskPhase.RELEASED) if _at_its_gate(task, gang) else task for task in tasks
        )
    return replace(
        run,
        tasks=tasks,
        hosts=tuple(_forgotten(host, at) for host in run.hosts),
        generation=gang,
        generation_last=max([run.generation_last, *(task.generation for task in tasks)]),
        phase=Phase.RUNNING if released else Phase.RENDEZVOUS,
        since_at=at,
        progress_at=at,
        # The pace is learned anew: how long the position stood still while nobody looked is not known.
        moved_to=None,
        moved_at=None,
        deadline_at=None if released else at + run.plan.timing.start_after_s,
        verify_at=next_verification(run, at, 0.0) if released else None,
        intent=None,
        force_at=None,
        evidence_at=None,
        proof=None,
        reason="rebuilt from what its hosts know",
    )


def _task(task: Task, report: TaskReport | None) -> Task:
    if report is None or report.generation < task.generation:
        return replace(task, heard_at=None)
    phase = TaskPhase.RUNNING
    if report.phase == "starting":
        phase = TaskPhase.STARTING
    elif report.phase == "ready":
        phase = TaskPhase.READY
    # One that has ended is told as living: that, and how, it ended is then learned as of any other.
    fresh = task if report.generation == task.generation else Task(task.id, task.host, report.generation)
    return replace(
        fresh,
        phase=phase,
        pid=report.pid if report.pid is not None else fresh.pid,
        port=report.port or fresh.port,
        progress=report.progress,
        budget=task.budget,
        exit=None,
        heard_at=None,
    )


def _at_its_gate(task: Task, gang: int) -> bool:
    """One that had joined when the gang was released: its release may be lost, and is repeated."""
    return task.phase is TaskPhase.READY and task.generation == gang


def _forgotten(host: Host, at: float) -> Host:
    return replace(host, link=Link.CONNECTING, since_at=at, heard_at=None, retry_at=None)
