"""What limits the pace of a run while it trains: looked at every few seconds, told as an event when it changes."""

from __future__ import annotations

from orchestrator.core import bottleneck
from orchestrator.core.bottleneck import HostReading, TaskReading, Watched
from orchestrator.core.notes import NoteKind
from orchestrator.core.plan import TaskId
from orchestrator.core.state.host import Host, Link
from orchestrator.core.state.phase_states import Phase, Running
from orchestrator.core.state.run import Run
from orchestrator.core.state.task import Task
from orchestrator.core.turn import Turn

LOOK_EVERY_S = 5.0
"""A look reads what all tasks have measured."""


def look(turn: Turn) -> None:
    """Judge what limits the run, if that is due, and say what has changed."""
    running = turn.run.phase_state
    if not isinstance(running, Running):
        return
    before = running.watched
    if before.looked_at is not None and turn.at - before.looked_at < LOOK_EVERY_S:
        return
    tasks, hosts = _tasks(turn.run), _hosts(turn.run)
    if before == Watched() and not any(_is_known(task) for task in tasks) and not hosts:
        return
    after = bottleneck.judge(before, tasks, hosts, turn.at)
    turn.set_phase(watched=after)
    was, is_now = before.told, after.told
    if (was and was.key) == (is_now and is_now.key):
        return
    if is_now is None:
        turn.note(NoteKind.BOTTLENECK, "nothing limits the run any more that was measured")
        return
    task = TaskId.parse(is_now.task) if is_now.task else None
    turn.note(
        NoteKind.BOTTLENECK,
        f"limited by {bottleneck.sentence(is_now)}; {bottleneck.REMEDIES[is_now.kind]}",
        task,
        bottleneck=is_now.kind,
        share=round(is_now.share, 3),
    )


def _is_known(reading: TaskReading) -> bool:
    return (reading.input_share, reading.peers_share, reading.gpu_percent) != (None, None, None)


def _tasks(run: Run) -> list[TaskReading]:
    """Return what the tasks measure that train. Of a host that is not heard nothing is known."""
    training = [task for task in run.tasks if task.phase.may_live and task.progress.global_step is not None]
    return [
        TaskReading(
            str(task.id),
            task.host,
            task.progress.input_share if host.link is Link.CONNECTED else None,
            task.progress.peers_share if host.link is Link.CONNECTED else None,
            _gpu_percent(run, task, host),
        )
        for task in training
        for host in (run.host(task.host),)
    ]


def _gpu_percent(run: Run, task: Task, host: Host) -> float | None:
    own = (
        run.plan.task(task.id).gpus
        if host.link is Link.CONNECTED and task.host == _planned(run, task)
        else ()
    )
    known = [
        load.utilization_percent
        for load in host.gpu_loads
        if load.index in own and load.utilization_percent is not None
    ]
    return sum(known) / len(known) if known else None


def _planned(run: Run, task: Task) -> str:
    return run.plan.task(task.id).host


def _hosts(run: Run) -> list[HostReading]:
    if run.phase is not Phase.RUNNING or run.global_step is None:
        return []
    return [
        HostReading(host.name, host.cpu_percent)
        for host in run.assignees
        if host.link is Link.CONNECTED and host.cpu_percent is not None
    ]
