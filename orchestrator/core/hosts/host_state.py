"""Changes of a host's state: lost, quarantined, stuck, and open again. `slots` decides who takes its tasks."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.core.causes import Blame, Cause
from orchestrator.core.ends import Exit
from orchestrator.core.hosts import slots
from orchestrator.core.notes import NoteKind
from orchestrator.core.state.host import Host, HostState, Link, Unkillable
from orchestrator.core.state.run import Problem, Run
from orchestrator.core.state.task import Task, TaskPhase
from orchestrator.core.turn import Turn
from orchestrator.core.words import counted

PREPARE_RETRY_S = 30.0
"""Until a host that could not be prepared is asked again, once the run has begun."""

FAULTS_MAX = 2
"""Generations in a row that a host may end by its own fault, without progress, before it is quarantined."""


def is_cut_off(run: Run) -> bool:
    """Return whether so many hosts are silent that the coordinator must be cut off: then it stops and starts nothing.

    Hosts that hold tasks count, and others that are connected. A host that was given up long ago does not count.
    """
    silent = [host for host in run.hosts if host.link is Link.UNREACHABLE]
    if not silent:
        return False
    holding = {host.name for host in run.assignees}
    judging = [host for host in run.hosts if host.name in holding or host.link is Link.CONNECTED]
    return 2 * sum(host.name in holding for host in silent) > len(judging)


def living(run: Run, host: Host) -> list[Task]:
    """Return the tasks on this host that may have a process."""
    return [task for task in run.tasks_on(host.name) if task.phase.may_live]


def lose(turn: Turn, task: Task, why: str = "") -> None:
    """Count a task as dead: its host has been silent for too long, or as `why` says."""
    ended = replace(task.exit or Exit(cause=Cause.HOST_LOST, at=turn.at), cause=Cause.HOST_LOST)
    turn.set_task(task, phase=TaskPhase.LOST, exit=ended)
    set_lost(turn, turn.run.host(task.host))
    why = why or f"{task.host} has been silent for too long"
    turn.note(NoteKind.TASK_LOST, f"{task.id} counts as lost: {why}", task.id)


def set_lost(turn: Turn, host: Host) -> None:
    """Mark a host as lost: its tasks count as dead. No host is marked while the coordinator is probably cut off."""
    if host.state is HostState.OPEN and not is_cut_off(turn.run):
        turn.set_host(host, state=HostState.LOST, state_why="it has been silent for too long")


def charge(turn: Turn, *, progressed: bool) -> None:
    """Count the end of a generation against the host whose own fault it was; quarantine it when it is too much."""
    run = turn.run
    name = None if progressed else _at_fault(run)
    for host in run.hosts:
        faults = host.faults + 1 if host.name == name else 0
        if faults != host.faults:
            turn.set_host(host, faults=faults)
    if name is None:
        return
    host = turn.run.host(name)
    if host.faults >= FAULTS_MAX and host.state in (HostState.OPEN, HostState.LOST):
        what = run.first_cause.sentence if run.first_cause else "it was lost"
        why = (
            f"it ended {counted(host.faults, 'generation')} in a row without progress, the last time: {what}"
        )
        turn.set_host(host, state=HostState.QUARANTINED, state_why=why)
        turn.note(
            NoteKind.QUARANTINED, f"{name} is quarantined: {why}; `orch undrain {name}` lets it in again"
        )


def _at_fault(run: Run) -> str | None:
    """Return the one host whose fault ended this generation; None if it was no host's, or several had it."""
    if len(run.assignees) < 2:
        return None
    lost = {task.host for task in run.tasks if task.phase is TaskPhase.LOST}
    failed = {task.host for task in run.tasks if task.exit and task.exit.cause.row.blame is Blame.HOST}
    cause = run.first_cause
    if not lost and (cause is None or cause.cause.row.blame is not Blame.HOST):
        return None
    # A task never joined, or could not be released.
    if not failed and cause is not None:
        return cause.host
    return failed.pop() if len(failed) == 1 else None


def set_stuck(turn: Turn, name: str, why: str) -> None:
    """Mark a host that holds a process that cannot be killed. A drain by the user stays."""
    host = turn.run.host(name)
    if host.state is not HostState.DRAINED:
        turn.set_host(host, state=HostState.STUCK, state_why=why)


STUCK_HINT = (
    "it ends when what it waits for answers (a disk, a network file system, a GPU), or when its owner ends it; "
    "else reboot the host"
)


def unkillable(turn: Turn, name: str, processes: tuple[Unkillable, ...]) -> None:
    """Close a host that has processes, of whichever run, that cannot be killed; open it once they are gone."""
    host = turn.run.host(name)
    if _who(processes) == _who(host.unkillable):
        return
    host = turn.set_host(host, unkillable=processes)
    if processes:
        why = "; ".join(process.sentence for process in processes)
        set_stuck(turn, name, why)
        turn.note(NoteKind.UNKILLABLE, f"{name}: {why}; no task is started there until it is gone")
    elif host.state is HostState.STUCK:
        reopen(turn, host)
        turn.note(NoteKind.HOST_OPEN, f"{name}: what could not be killed is gone; it may get tasks again")


def reopen(turn: Turn, host: Host) -> None:
    """Let a host in again that was stuck, or was to leave, with what it had against it before."""
    if host.leave_at is not None:
        turn.set_host(host, state=HostState.LEAVING, state_why=host.leave_why)
    elif host.faults >= FAULTS_MAX:
        why = f"it ended {counted(host.faults, 'generation')} in a row without progress"
        turn.set_host(host, state=HostState.QUARANTINED, state_why=why)
    else:
        turn.set_host(host, state=HostState.OPEN, state_why="")


def _who(processes: tuple[Unkillable, ...]) -> set[tuple[str, int]]:
    return {(process.run, process.pid) for process in processes}


def stuck(name: str, why: str) -> Problem:
    """Return why no run may use a host that holds a process that cannot be killed."""
    message = f"{name} gets no task beside a process that cannot be killed: {why}"
    return Problem(code="host-stuck", message=message, hint=STUCK_HINT, exit_code=6)


def heard(turn: Turn, name: str, *, holds_tasks: bool) -> None:
    """Open a lost host again once it holds none of the tasks that were given up."""
    host = turn.run.host(name)
    if host.state is HostState.LOST and not holds_tasks:
        if host.leave_at is not None:
            turn.set_host(host, state=HostState.LEAVING, state_why=host.leave_why)
            return
        turn.set_host(host, state=HostState.OPEN, state_why="")
        turn.note(NoteKind.HOST_OPEN, f"{name} holds none of the lost tasks any more and may get tasks again")


def say_unfit(turn: Turn, hosts: list[Host]) -> None:
    """Note which prepared spares cannot be used. The run goes on without them."""
    holding = {host.name for host in turn.run.assignees}
    for host in hosts:
        why = slots.unfit(turn.run, host) if host.name not in holding else None
        if why is not None:
            turn.note(NoteKind.SPARE_UNFIT, f"{host.name} cannot replace another host: {why}")


def ask_again(turn: Turn, name: str, problem: Problem) -> None:
    """Ask a host again before it gets a task: what it lacks may come."""
    retry_at = turn.at + PREPARE_RETRY_S
    turn.set_host(turn.run.host(name), facts=None, problem=problem.message, retry_at=retry_at)


def leaving(run: Run) -> list[Host]:
    """Return the hosts that hold tasks and leave."""
    warned = [host for host in run.hosts if host.leave_at is not None]
    return [host for host in warned if run.tasks_on(host.name)] if warned else []
